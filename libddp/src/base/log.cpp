#include "base/log.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

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

namespace {

/// What a terminal that says it is writable takes at least (WAKEUP_CHARS of Linux's drivers/tty/n_tty.c).
constexpr std::size_t kTerminalRoom = 256;
/// Another writer filled the space that poll(2) reported.
constexpr int kRetryMs = 10;

struct Target {
  int fd;
  UniqueFd own{};  ///< the same pipe or terminal, opened anew: without blocking, and for this call alone
  bool socket = false;
  std::size_t chunk_bytes = PIPE_BUF;  ///< what it takes without making the writer wait, once it is writable
};

Target target_of(int fd) noexcept {
  Target target{.fd = fd};
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return target;
  target.socket = S_ISSOCK(facts.st_mode);
  if (S_ISREG(facts.st_mode)) target.chunk_bytes = SSIZE_MAX;  // never makes a writer wait for a reader
  const bool terminal = ::isatty(fd) == 1;
  if (!terminal && !S_ISFIFO(facts.st_mode)) return target;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  target.own.reset(::open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  // That is refused to users who do not own it, for example after su(1).
  if (target.own) target.fd = target.own.get();
  if (!target.own && terminal) target.chunk_bytes = kTerminalRoom;
  return target;
}

/// The first bytes of @p text and @p ending, which is at most a newline: all of them where they fit, else whole lines
/// where there are any.
ssize_t write_some(const Target& target, std::string_view text, std::string_view ending) noexcept {
  std::size_t size = text.size();
  const bool all = size < target.chunk_bytes;
  if (!all) {
    size = std::min(size, target.chunk_bytes);
    const std::size_t end = text.rfind('\n', size - 1);
    if (end != std::string_view::npos) size = end + 1;
  }
  iovec parts[] = {{.iov_base = const_cast<char*>(text.data()), .iov_len = size},
                   {.iov_base = const_cast<char*>(ending.data()), .iov_len = ending.size()}};
  const std::size_t count = all ? 2 : 1;
  if (!target.socket) return ::writev(target.fd, parts, static_cast<int>(count));
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  return ::sendmsg(target.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// Until the target takes something. @return false: it has no reader, or took nothing until @p deadline
bool wait_until_writable(int fd, Deadline deadline, int stop_fd) noexcept {
  for (;;) {
    pollfd entries[] = {{.fd = fd, .events = POLLOUT, .revents = 0}, {.fd = stop_fd, .events = POLLIN, .revents = 0}};
    const int count = ::poll(entries, 2, deadline.poll_timeout_ms());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || (entries[0].revents & (POLLERR | POLLNVAL)) != 0) return false;
    if ((entries[0].revents & POLLOUT) != 0) return true;
    if (entries[1].revents != 0 || entries[0].revents != 0) return false;
  }
}

bool write_in_time(int fd, std::string_view text, std::string_view ending, std::chrono::milliseconds patience,
                   int stop_fd) noexcept {
  const Target target = target_of(fd);
  const std::size_t size = text.size() + ending.size();
  std::size_t left = size;
  Deadline deadline = Deadline::after(patience);
  while (left > 0) {
    if (!wait_until_writable(target.fd, deadline, stop_fd)) return false;
    const std::size_t done = size - left;
    const ssize_t written =
        write_some(target, text.substr(std::min(done, text.size())), ending.substr(done - std::min(done, text.size())));
    if (written > 0) {
      left -= static_cast<std::size_t>(written);
      deadline = Deadline::after(patience);
    } else if (written < 0 && errno != EINTR) {
      if (errno != EAGAIN || deadline.expired()) return false;
      ::poll(nullptr, 0, kRetryMs);
    }
  }
  return true;
}

}  // namespace

bool write_line(int fd, std::string_view line, std::chrono::milliseconds patience, int stop_fd) noexcept {
  return write_in_time(fd, line, "\n", patience, stop_fd);
}

bool write_bytes(int fd, std::string_view bytes, std::chrono::milliseconds patience, int stop_fd) noexcept {
  return write_in_time(fd, bytes, "", patience, stop_fd);
}

bool write_text(int fd, std::string_view text, std::chrono::milliseconds patience, int stop_fd) noexcept {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return write_line(fd, text, patience, stop_fd);
}

void write_stderr_line(std::string_view line, std::chrono::milliseconds patience, int stop_fd) noexcept {
  write_line(STDERR_FILENO, line, patience, stop_fd);
}

}  // namespace ddp::base
