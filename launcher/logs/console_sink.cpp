#include "logs/console_sink.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace ddp::launcher {
namespace {

/// What a terminal that says it is writable takes at least (WAKEUP_CHARS of Linux's drivers/tty/n_tty.c).
constexpr std::size_t kTerminalRoom = 256;
constexpr std::size_t kSocketChunk = std::size_t{256} << 10U;
constexpr std::size_t kCompactFrom = std::size_t{1} << 18U;
constexpr std::size_t kUsualColumns = 80;  // where a terminal does not say

std::size_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

/// The beginning of @p text that takes so many columns: one for each UTF-8 character, none for a colour.
std::string_view fitting(std::string_view text, std::size_t columns) {
  bool in_colour = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (in_colour || byte == 0x1b) {
      in_colour = text[at] != 'm';
    } else if ((byte & 0xC0U) != 0x80U && columns-- == 0) {
      return text.substr(0, at);
    }
  }
  return text;
}

}  // namespace

ConsoleSink::ConsoleSink(int fd, std::string name, OutputFile::Complaint complaint)
    : Console(std::move(name)), fd_(fd) {
  detect(fd, std::move(complaint));
}

bool ConsoleSink::same_target(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

void ConsoleSink::detect(int fd, OutputFile::Complaint complaint) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) {
    gone_ = true;
    return;
  }
  terminal_ = ::isatty(fd) == 1;
  if (S_ISSOCK(facts.st_mode)) {
    kind_ = Kind::socket;
    chunk_bytes_ = kSocketChunk;
  } else if (S_ISFIFO(facts.st_mode) || terminal_) {
    // Writes of at most PIPE_BUF bytes are not torn by other writers to the same pipe (POSIX).
    chunk_bytes_ = PIPE_BUF;
    // Reopened, a pipe or terminal can be non-blocking for this process alone. Only its owner may do that, so not after
    // su(1).
    own_fd_.reset(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    kind_ = own_fd_ ? Kind::own : Kind::shared;
    if (kind_ == Kind::shared && terminal_) chunk_bytes_ = kTerminalRoom;
  } else {
    // Files and devices such as /dev/null never make a writer wait for a reader.
    kind_ = Kind::file;
    base::UniqueFd copy{::fcntl(fd, F_DUPFD_CLOEXEC, 3)};
    gone_ = !copy;
    file_.emplace(std::move(copy), name(), std::move(complaint));
  }
}

void ConsoleSink::append(const void* owner, std::string_view bytes) {
  if (bytes.empty()) return;
  remove_bar();
  if (line_open_ && open_prefixed_ && owner_ != owner) push("\n");
  push(bytes);
  owner_ = owner;
  line_open_ = bytes.back() != '\n';
  open_prefixed_ = false;
}

void ConsoleSink::append_line(const void* owner, std::string_view prefix, const LinePiece& piece) {
  if (piece.overwritten && terminal_) return show_bar(owner, prefix, piece.text);
  remove_bar();
  const bool interrupted = owner_ != owner;
  if (!piece.begins && piece.text.empty() && interrupted) return;  // the interruption has ended the line already
  if (line_open_ && (interrupted || !open_prefixed_)) push("\n");
  if (piece.begins || interrupted) push(prefix);
  push(piece.text);
  if (piece.ends) push("\n");
  owner_ = owner;
  line_open_ = open_prefixed_ = !piece.ends;
}

void ConsoleSink::show_bar(const void* owner, std::string_view prefix, std::string_view text) {
  const auto now = std::chrono::steady_clock::now();
  if (bar_owner_ != owner && now < bar_at_ + kBarPause) return;
  if (line_open_) push("\n");
  line_open_ = open_prefixed_ = false;
  const std::string line = fmt::format("{}{}", prefix, text);
  push("\r");
  push(fitting(line, columns_of(fd_) - 1));  // in the last column, some terminals would wrap
  push("\x1b[0m\x1b[K");
  bar_shown_ = true;
  bar_owner_ = owner;
  bar_at_ = now;
}

void ConsoleSink::remove_bar() {
  if (std::exchange(bar_shown_, false)) push("\r\x1b[K");
}

void ConsoleSink::push(std::string_view bytes) {
  if (gone_) {
    if (abandoned_) abandoned_bytes_ += bytes.size();
    return;
  }
  queue_ += bytes;
}

void ConsoleSink::flush() {
  blocked_ = false;
  if (kind_ == Kind::file && !idle() && !gone_) {
    const std::string taken = std::exchange(queue_, {});
    taken_bytes_ += taken.size();
    file_->write(taken);  // a complaint may come back to this very queue
    return;
  }
  while (!idle() && !gone_) {
    const long written = write_some(std::string_view{queue_}.substr(head_));
    if (written > 0) {
      head_ += static_cast<std::size_t>(written);
      taken_bytes_ += static_cast<std::size_t>(written);
    } else if (written < 0 && errno == EINTR) {
      continue;
    } else if (written < 0 && errno == EAGAIN) {
      blocked_ = true;
      break;
    } else {
      gone_ = true;  // no reader is left (EPIPE), or the terminal has hung up (EIO)
    }
  }
  if (gone_ || idle()) {
    queue_.clear();
    head_ = 0;
  } else if (head_ >= kCompactFrom) {
    queue_.erase(0, head_);
    head_ = 0;
  }
}

long ConsoleSink::write_some(std::string_view bytes) {
  std::size_t size = std::min(bytes.size(), chunk_bytes_);
  if (size < bytes.size()) {
    const std::size_t newline = bytes.rfind('\n', size - 1);
    if (newline != std::string_view::npos) size = newline + 1;
  }
  if (kind_ == Kind::socket) return ::send(fd_, bytes.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (kind_ == Kind::own) return ::write(own_fd_.get(), bytes.data(), size);
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, bytes.data(), size);
}

std::optional<int> ConsoleSink::awaited() const {
  if (!blocked_ || gone_) return std::nullopt;
  return kind_ == Kind::own ? own_fd_.get() : fd_;
}

void ConsoleSink::abandon() {
  abandoned_bytes_ += queued();
  queue_.clear();
  head_ = 0;
  gone_ = abandoned_ = true;
}

void ConsoleSink::close() {
  if (file_) file_->close();
  own_fd_.reset();  // a reader waits for the end of the pipe while it is open
  gone_ = true;
}

}  // namespace ddp::launcher
