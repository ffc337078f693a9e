#include "logs/log_stream.hpp"

#include <limits.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "logs/log_plan.hpp"

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

namespace {

// ECMA-48 SGR: colours that can be told apart on dark and light terminals; no red, which stands for errors.
constexpr std::array<int, 8> kRankColours = {36, 33, 32, 35, 34, 96, 92, 95};

/// "2026-01-31T12:00:00.000" with so many digits after the point.
template <class Fraction>
std::string utc_time(std::chrono::system_clock::time_point time, int digits) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:0{}}", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     std::chrono::duration_cast<Fraction>(time - seconds).count(), digits);
}

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

LineFormat::LineFormat(const LogPumpOptions& options, const StreamRoute& route)
    : json_(options.format == LogFormat::json),
      in_place_(!json_ && (route.stream == Stream::out ? options.terminal_out : options.terminal_err)),
      timestamps_(options.timestamps),
      prefix_(fill_prefix_template(
          options.prefix_template.empty() ? kDefaultPrefixTemplate : std::string_view{options.prefix_template},
          {.role_name = route.role, .rank = route.rank, .local_rank = route.local_rank})),
      console_prefix_(prefix_),
      json_facts_(fmt::format(R"(,"host":{},"rank":{},"local_rank":{},"stream":"{}","line":)", json_text(options.host),
                              route.rank, route.local_rank, route.stream == Stream::out ? "stdout" : "stderr")) {
  if (in_place_ && !prefix_.empty()) {
    const auto colour = kRankColours[static_cast<std::size_t>(route.rank) % kRankColours.size()];
    console_prefix_ = fmt::format("\x1b[{}m{}\x1b[0m", colour, prefix_);
  }
}

std::string LineFormat::json_line(const LinePiece& piece, std::chrono::system_clock::time_point time) const {
  return fmt::format(R"({{"time":"{}Z"{}{}{}}})", utc_time<std::chrono::microseconds>(time, 6), json_facts_,
                     json_text(piece.text), piece.ends ? "" : R"(,"partial":true)");
}

std::string LineFormat::timestamp(std::chrono::system_clock::time_point time) const {
  return timestamps_ ? utc_time<std::chrono::milliseconds>(time, 3) + "Z " : std::string{};
}

namespace {

constexpr std::size_t kKeptFactor = 4;  // of the limit; room for what progress bars had overwritten

/// The line as a terminal would leave it: what follows the last "\r", but for one that belongs to the line's end.
std::string_view without_overwritten(std::string_view line) {
  std::string_view content = line;
  while (!content.empty() && (content.back() == '\n' || content.back() == '\r')) content.remove_suffix(1);
  const std::size_t last = content.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

std::string_view cut_to(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  const bool at_line = text[text.size() - limit - 1] == '\n';
  text.remove_prefix(text.size() - limit);
  if (at_line) return text;
  const std::size_t newline = text.find('\n');
  if (newline != std::string_view::npos && newline + 1 < text.size()) return text.substr(newline + 1);
  while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xC0U) == 0x80U) text.remove_prefix(1);
  return text;
}

}  // namespace

void TailBuffer::append(std::string_view bytes) {
  const std::size_t limit = kKeptFactor * max_bytes_;
  const std::lock_guard lock(mutex_);
  if (bytes.size() >= limit) {
    kept_.assign(bytes.substr(bytes.size() - limit));
    return;
  }
  kept_ += bytes;
  if (kept_.size() > 2 * limit) kept_.erase(0, kept_.size() - limit);  // seldom, so that its cost does not show
}

std::string TailBuffer::text() const {
  std::string shown;
  {
    const std::lock_guard lock(mutex_);
    std::string_view rest = kept_;
    while (!rest.empty()) {
      const std::size_t newline = rest.find('\n');
      const std::string_view line = rest.substr(0, newline == std::string_view::npos ? newline : newline + 1);
      shown += without_overwritten(line);
      rest.remove_prefix(line.size());
    }
  }
  std::string_view last = cut_to(shown, max_bytes_);
  std::size_t start = last.size();
  if (last.ends_with('\n')) --start;
  for (int lines = 0; lines < max_lines_; ++lines) {
    const std::size_t newline = start == 0 ? std::string_view::npos : last.rfind('\n', start - 1);
    if (newline == std::string_view::npos) return std::string{last};
    start = newline;
  }
  return std::string{last.substr(start + 1)};
}

}  // namespace ddp::launcher
