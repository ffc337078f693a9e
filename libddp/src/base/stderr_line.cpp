#include "base/stderr_line.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::base {
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
