#include "base/log.hpp"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace ddp::base {
namespace {

std::atomic<int> log_rank{-1};
std::atomic<bool> logger_is_made{false};

std::string pattern() {
  const int rank = log_rank;
  return rank < 0 ? "[ddp] %l: %v" : fmt::format("[ddp rank {}] %l: %v", rank);
}

spdlog::level::level_enum level() {
  // Not through Environment, which copies every variable: every rank asks before its first fence. Environment reports a
  // value that is none of these, where there is a way to report; the log stays at warning.
  static const spdlog::level::level_enum chosen = [] {
    const char* const set = std::getenv("DDP_LOG_LEVEL");
    const std::string_view name = set == nullptr ? "" : set;
    return name == "debug"   ? spdlog::level::debug
           : name == "info"  ? spdlog::level::info
           : name == "error" ? spdlog::level::err
           : name == "off"   ? spdlog::level::off
                             : spdlog::level::warn;
  }();
  return chosen;
}

// Not in spdlog's registry: a host program may use spdlog itself and must not find our logger there. Made for the first
// line that is written.
spdlog::logger& logger() {
  // never destroyed: sessions are closed, and threads log, while the process exits
  static spdlog::logger* const instance = [] {
    auto made = std::make_unique<spdlog::logger>("ddp", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger_is_made = true;  // before the rank is read, so that a rank set meanwhile is not lost
    made->set_pattern(pattern());
    made->set_level(level());
    made->flush_on(spdlog::level::debug);
    return made.release();
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void log_line(LogLevel level, std::string_view text) noexcept {
  if (!log_enabled(level)) return;
  try {
    logger().log(to_spdlog(level), text);
  } catch (...) {  // losing a log line must not end a training run
  }
}

bool log_enabled(LogLevel wanted) noexcept { return to_spdlog(wanted) >= level(); }

void set_log_rank(int rank) {
  log_rank = rank;
  if (logger_is_made) logger().set_pattern(pattern());
}

}  // namespace ddp::base
