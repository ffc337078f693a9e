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
  const bool cut = bytes.size() >= PIPE_BUF;  // shorter writes are not
  const auto wait = cut || targets_.of_job ? kCutWriteWait : kUnfinishedLineWait;
  const std::size_t newline = bytes.rfind('\n');
  if (newline != std::string_view::npos) {
    // At once: the job's console may put other nodes' lines between two.
    unfinished_ += bytes.substr(0, newline + 1);
    show_unfinished();
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
  due_.reset();
  if (prefixed_) {
    if (bar_.empty() || std::exchange(bar_shown_, true)) return;
    bar_at_ = Clock::now();
    show({.text = bar_, .begins = true, .ends = true, .overwritten = true}, std::chrono::system_clock::now());
  } else if (!unfinished_.empty()) {
    targets_.console->append(this, unfinished_);
    unfinished_.clear();
  }
}

void LogStream::take_lines(std::span<const LinePiece> pieces) {
  const auto time = std::chrono::system_clock::now();
  for (const LinePiece& piece : pieces) {
    if (targets_.filtered_file != nullptr) filter(piece, time);
    if (targets_.console == nullptr || !prefixed_ || piece.overwritten) continue;
    // A bar that a line of the console shows already needs no second one.
    const bool shown = std::exchange(bar_shown_, false) && !format_.in_place() && piece.text == bar_;
    bar_.clear();
    if (!shown || !piece.begins || !piece.ends) show(piece, time);
  }
  if (targets_.console != nullptr && prefixed_) follow_bar();
}

void LogStream::show(const LinePiece& piece, std::chrono::system_clock::time_point time) {
  if (format_.json()) {
    const std::string json = format_.json_line(piece, time);
    targets_.console->append_line(this, {}, {.text = json, .begins = true, .ends = true, .overwritten = false});
  } else {
    targets_.console->append_line(this, format_.console_prefix(time), piece);
  }
}

void LogStream::follow_bar() {
  const auto bar = lines_.bar();
  if (bar && *bar != bar_) {
    bar_ = *bar;
    bar_shown_ = false;
  }
  if (bar_.empty() || bar_shown_) {
    due_.reset();
    return;
  }
  const auto due = bar_at_ + (format_.in_place() ? kBarInterval : kBarLineInterval);
  due <= Clock::now() ? show_unfinished() : void(due_ = due);
}

void LogStream::filter(const LinePiece& piece, std::chrono::system_clock::time_point time) {
  const auto contained = [&](const std::string& text) { return piece.text.find(text) != std::string_view::npos; };
  if (!std::any_of(targets_.filters->begin(), targets_.filters->end(), contained)) return;
  std::string line;
  if (format_.json()) {
    line = format_.json_line(piece, time);
  } else {
    line = format_.prefix(time);
    line += piece.text;
  }
  line += '\n';
  targets_.filtered_file->write(line);
}

void LogStream::close() {
  if (!open()) return;
  if (!prefixed_) show_unfinished();
  take_lines(lines_.take_rest());
  if (targets_.file) targets_.file->close();
  pipe_.reset();
}

}  // namespace ddp::launcher
