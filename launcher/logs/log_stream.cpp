#include "logs/log_stream.hpp"

#include <limits.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddp::launcher {

LogStream::LogStream(base::UniqueFd pipe, const StreamRoute& route, StreamTargets targets, LineFormat format)
    : pipe_(std::move(pipe)),
      local_rank_(route.local_rank),
      prefixed_(route.prefixed),
      targets_(std::move(targets)),
      format_(std::move(format)) {}

std::optional<std::size_t> LogStream::read(std::span<char> buffer) {
  ssize_t size = 0;
  do {
    size = ::read(pipe_.get(), buffer.data(), buffer.size());
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) return 0;
  if (size <= 0) return std::nullopt;
  take({buffer.data(), static_cast<std::size_t>(size)});
  return static_cast<std::size_t>(size);
}

std::size_t LogStream::pending_bytes() const {
  int size = 0;
  return open() && ::ioctl(pipe_.get(), FIONREAD, &size) == 0 ? static_cast<std::size_t>(std::max(size, 0)) : 0;
}

void LogStream::take(std::string_view bytes) {
  if (targets_.tail) targets_.tail->append(bytes);
  if (targets_.file) targets_.file->write(bytes);
  if (targets_.console != nullptr && !prefixed_) pass_on(bytes);
  if ((targets_.console != nullptr && prefixed_) || targets_.filtered_file != nullptr) take_lines(lines_.take(bytes));
}

void LogStream::pass_on(std::string_view bytes) {
  const auto wait = bytes.size() >= PIPE_BUF ? kCutWriteWait : kUnfinishedLineWait;  // shorter writes are not cut
  const std::size_t newline = bytes.rfind('\n');
  if (newline != std::string_view::npos) {
    show_unfinished();
    targets_.console->append(this, bytes.substr(0, newline + 1));
    bytes.remove_prefix(newline + 1);
    progress_bar_ = false;
  }
  if (bytes.empty()) return;
  progress_bar_ = progress_bar_ || bytes.find('\r') != std::string_view::npos;
  if (progress_bar_ || unfinished_.size() + bytes.size() > LineAssembler::kMaxLineBytes) {
    show_unfinished();
    targets_.console->append(this, bytes);
    return;
  }
  if (unfinished_.empty()) due_ = Clock::now() + wait;
  unfinished_ += bytes;
}

void LogStream::show_unfinished() {
  if (!unfinished_.empty()) targets_.console->append(this, unfinished_);
  unfinished_.clear();
  due_.reset();
}

void LogStream::take_lines(std::span<const LinePiece> pieces) {
  if (pieces.empty()) return;
  const auto time = std::chrono::system_clock::now();
  std::string json;
  for (const LinePiece& piece : pieces) {
    if (format_.json()) json = format_.json_line(piece, time);
    if (targets_.filtered_file != nullptr) filter(piece, json);
    if (targets_.console == nullptr || !prefixed_) continue;
    if (format_.json()) {
      targets_.console->append_line(this, {}, {.text = json, .begins = true, .ends = true});
    } else {
      targets_.console->append_line(this, format_.console_prefix(), piece);
    }
  }
}

void LogStream::filter(const LinePiece& piece, std::string_view json) {
  const auto contained = [&](const std::string& text) { return piece.text.find(text) != std::string_view::npos; };
  if (!std::any_of(targets_.filters->begin(), targets_.filters->end(), contained)) return;
  std::string line;
  if (format_.json()) {
    line = json;
  } else {
    line = format_.prefix();
    line += piece.text;
  }
  line += '\n';
  targets_.filtered_file->write(line);
}

void LogStream::close() {
  if (!open()) return;
  show_unfinished();
  take_lines(lines_.take_rest());
  if (targets_.file) targets_.file->close();
  pipe_.reset();
}

}  // namespace ddp::launcher
