#include "base/log.hpp"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/env_table.hpp"

namespace ddp::base {
namespace {

// Not in spdlog's registry: a host program may use spdlog itself and must not find our logger there.
spdlog::logger& logger() {
  // never destroyed: sessions are closed, and threads log, while the process exits
  static spdlog::logger* const instance = [] {
    auto made = std::make_unique<spdlog::logger>("ddp", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[ddp] %l: %v");
    spdlog::level::level_enum level = spdlog::level::warn;
    try {
      const std::string name = Environment::process().text("DDP_LOG_LEVEL");
      level = name == "debug"   ? spdlog::level::debug
              : name == "info"  ? spdlog::level::info
              : name == "error" ? spdlog::level::err
              : name == "off"   ? spdlog::level::off
                                : spdlog::level::warn;
    } catch (const std::exception&) {
      // A bad value is reported by whoever reads the environment first with a way to report; the log stays at warning.
    }
    made->set_level(level);
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
  try {
    logger().log(to_spdlog(level), text);
  } catch (...) {  // losing a log line must not end a training run
  }
}

bool log_enabled(LogLevel level) noexcept {
  try {
    return logger().should_log(to_spdlog(level));
  } catch (...) {
    return false;
  }
}

void set_log_rank(int rank) { logger().set_pattern(fmt::format("[ddp rank {}] %l: %v", rank)); }

}  // namespace ddp::base
