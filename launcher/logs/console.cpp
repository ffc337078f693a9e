#include "logs/console.hpp"

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

/// The least that a writable terminal accepts (WAKEUP_CHARS of Linux's drivers/tty/n_tty.c).
constexpr std::size_t kTerminalRoom = 256;
constexpr std::size_t kSocketChunk = std::size_t{256} << 10U;
constexpr std::size_t kCompactFrom = std::size_t{1} << 18U;
constexpr std::size_t kUsualColumns = 80;  // if a terminal does not report them

std::size_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

/// The beginning of @p text that fits this many columns: one per UTF-8 character, none for a colour.
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
    // Other writers to the same pipe do not break up writes of at most PIPE_BUF bytes (POSIX).
    chunk_bytes_ = PIPE_BUF;
    // Reopened, a pipe or terminal can be non-blocking for this process alone. Only its owner may reopen it, so not
    // after su(1).
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
  if (!piece.begins && piece.text.empty() && interrupted) return;  // the interruption has already ended the line
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
  push(fitting(line, columns_of(fd_) - 1));  // some terminals would wrap at the last column
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
    file_->write(taken);  // a complaint may return to this very queue
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
  own_fd_.reset();  // an open pipe would keep its reader waiting for the end
  gone_ = true;
}

namespace {

constexpr std::size_t kMostBatchBytes = std::size_t{64} << 10U;
constexpr std::size_t kBatchesPerWindow = 4;
using control::kWholeLines;

/// The first lines of @p bytes, at most @p most bytes but for a longer line: what other writers' output may follow.
std::string_view whole_lines(std::string_view bytes, std::size_t most) {
  if (bytes.size() <= most) return bytes;
  std::size_t end = bytes.rfind('\n', most - 1);
  if (end == std::string_view::npos) end = bytes.find('\n', most);
  return end == std::string_view::npos ? bytes : bytes.substr(0, end + 1);
}

}  // namespace

RemoteConsole::RemoteConsole(control::Connection& link, int epoch, bool error, std::size_t window_bytes,
                             std::string name, MakeOwn make_own)
    : Console(std::move(name)),
      link_(link),
      epoch_(epoch),
      error_(error),
      window_bytes_(window_bytes),
      batch_bytes_(std::clamp(window_bytes / kBatchesPerWindow, std::size_t{1}, kMostBatchBytes)),
      make_own_(std::move(make_own)),
      owners_{nullptr} {}

bool RemoteConsole::dropped(std::size_t bytes) {
  if (gone_) abandoned_bytes_ += bytes;
  return gone_;
}

/// A piece at the end of the last unsent batch. @p mergeable: reuses the last piece if it is @p owner's, too
control::ConsolePiece& RemoteConsole::add(const void* owner, std::size_t bytes, bool mergeable) {
  if (unsent_.empty() || unsent_.back().bytes >= batch_bytes_)
    unsent_.push_back({.output = {.epoch = epoch_, .error = error_}, .bytes = 0});
  Batch& batch = unsent_.back();
  batch.bytes += bytes;
  unsent_bytes_ += bytes;
  std::vector<control::ConsolePiece>& pieces = batch.output.pieces;
  int writer = kWholeLines;
  if (owner != nullptr) {
    const auto [found, added] = writers_.try_emplace(owner, static_cast<int>(owners_.size()));
    if (added) owners_.push_back(owner);
    writer = found->second;
  }
  if (mergeable && !pieces.empty() && pieces.back().writer == writer && pieces.back().prefix.empty())
    return pieces.back();
  return pieces.emplace_back(control::ConsolePiece{.writer = writer});
}

void RemoteConsole::append(const void* owner, std::string_view bytes) {
  if (own_) return own_->append(owner, bytes);
  if (dropped(bytes.size())) return;
  while (!bytes.empty()) {
    const bool full = unsent_.empty() || unsent_.back().bytes >= batch_bytes_;
    const std::string_view part = whole_lines(bytes, full ? batch_bytes_ : batch_bytes_ - unsent_.back().bytes);
    control::ConsolePiece& piece = add(owner, part.size(), true);
    piece.unprefixed = true;
    piece.text += part;
    bytes.remove_prefix(part.size());
  }
}

void RemoteConsole::append_line(const void* owner, std::string_view prefix, const LinePiece& piece) {
  if (own_) return own_->append_line(owner, prefix, piece);
  const std::size_t bytes = prefix.size() + piece.text.size() + 1;
  if (dropped(bytes)) return;
  if (piece.begins && piece.ends && !piece.overwritten) {
    std::string& lines = add(nullptr, bytes, true).text;
    lines += prefix;
    lines += piece.text;
    lines += '\n';
    return;
  }
  control::ConsolePiece& part = add(owner, bytes, false);
  part.begins = piece.begins;
  part.ends = piece.ends;
  part.overwritten = piece.overwritten;
  part.prefix = prefix;
  part.text = piece.text;
}

void RemoteConsole::flush() {
  if (own_) return own_->flush();
  while (ready()) {
    Batch batch = std::move(unsent_.front());
    unsent_.pop_front();
    unsent_bytes_ -= batch.bytes;
    untaken_bytes_ += batch.bytes;
    link_.send(batch.output);
    untaken_.push_back(std::move(batch));
  }
}

bool RemoteConsole::ready() const {
  if (own_) return own_->ready();
  return !unsent_.empty() && untaken_bytes_ < window_bytes_ && link_.open();
}

std::size_t RemoteConsole::queued() const { return own_ ? own_->queued() : unsent_bytes_ + untaken_bytes_; }

std::optional<int> RemoteConsole::awaited() const { return own_ ? own_->awaited() : std::nullopt; }

void RemoteConsole::taken(std::int64_t messages) {
  for (; messages > 0 && !untaken_.empty(); --messages) {
    taken_bytes_ += untaken_.front().bytes;
    untaken_bytes_ -= untaken_.front().bytes;
    untaken_.pop_front();
  }
}

void RemoteConsole::fall_back() {
  if (own_ || gone_) return;
  own_ = make_own_();
  for (const std::deque<Batch>* batches : {&untaken_, &unsent_}) {
    for (const Batch& batch : *batches) {
      for (const control::ConsolePiece& piece : batch.output.pieces)
        write_piece(*own_, owners_.at(static_cast<std::size_t>(piece.writer)), piece);
    }
  }
  untaken_.clear();
  unsent_.clear();
  untaken_bytes_ = unsent_bytes_ = 0;
}

void RemoteConsole::abandon() {
  if (own_) return own_->abandon();
  abandoned_bytes_ += queued();
  untaken_.clear();
  unsent_.clear();
  untaken_bytes_ = unsent_bytes_ = 0;
  gone_ = true;
}

void RemoteConsole::close() {
  if (own_) return own_->close();
  gone_ = true;
}

std::uint64_t RemoteConsole::taken_bytes() const { return taken_bytes_ + (own_ ? own_->taken_bytes() : 0); }

std::uint64_t RemoteConsole::abandoned_bytes() const { return abandoned_bytes_ + (own_ ? own_->abandoned_bytes() : 0); }

void write_piece(Console& console, const void* owner, const control::ConsolePiece& piece) {
  if (piece.unprefixed) return console.append(owner, piece.text);
  std::string_view text = piece.text;
  if (piece.writer == kWholeLines && text.ends_with('\n')) text.remove_suffix(1);
  console.append_line(owner, piece.prefix,
                      {.text = text, .begins = piece.begins, .ends = piece.ends, .overwritten = piece.overwritten});
}

}  // namespace ddp::launcher
