#include "base/errors.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace ddp::base {

std::string errno_name(int number) {
  const char* name = strerrorname_np(number);
  return name != nullptr ? fmt::format("{} ({})", name, number) : fmt::format("errno {}", number);
}

std::string errno_text(int number) {
  const char* text = strerrordesc_np(number);
  return text != nullptr ? text : fmt::format("unknown error {}", number);
}

Error system_error(std::string attempted, int number, std::string hint, ErrorCode code) {
  return Error{{.code = code,
                .attempted = std::move(attempted),
                .cause = errno_text(number),
                .native = errno_name(number),
                .hint = std::move(hint)}};
}

namespace {

// Each frame of a traceback has such a line; the first line of a traceback may be missing.
constexpr std::string_view kFrame = "  File \"";
constexpr std::string_view kFrameNumber = "\", line ";

/// Takes the first line off @p text.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::string_view exception_line(std::string_view text) {
  const std::size_t number = text.rfind(kFrameNumber);
  if (number == std::string_view::npos) return {};
  const std::size_t newline = text.rfind('\n', number);
  text.remove_prefix(newline == std::string_view::npos ? 0 : newline + 1);
  const std::string_view frame = next_line(text);
  const std::size_t begin = frame.find(kFrame);
  if (begin == std::string_view::npos) return {};
  const std::string_view prefix = frame.substr(0, begin);
  while (!text.empty()) {
    std::string_view line = next_line(text);
    if (!line.starts_with(prefix)) continue;
    line.remove_prefix(prefix.size());
    if (!line.empty() && line.front() != ' ' && line.front() != '\t' && line.front() != '\r') return line;
  }
  return {};
}

}  // namespace ddp::base

namespace ddp {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::conflict: return "conflict";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::protocol: return "protocol";
    case ErrorCode::system: return "system";
    case ErrorCode::aborted: return "aborted";
  }
  return "unknown";
}

std::string format_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  std::string list;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    // In 64 bits: a message from a peer may name any int as a rank, the largest too.
    while (last + 1 < ranks.size() && std::int64_t{ranks[last + 1]} == std::int64_t{ranks[last]} + 1) ++last;
    if (!list.empty()) list += ", ";
    if (last == first) {
      list += fmt::to_string(ranks[first]);
    } else if (last == first + 1) {
      list += fmt::format("{}, {}", ranks[first], ranks[last]);
    } else {
      list += fmt::format("{}-{}", ranks[first], ranks[last]);
    }
    first = last + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list);
}

namespace {

std::string compose(const ErrorDetail& detail) {
  std::string text = fmt::format("{}: {}", detail.attempted, detail.cause);
  if (!detail.native.empty()) text += fmt::format(" [{}]", detail.native);
  if (!detail.ranks.empty()) text += fmt::format(" ({})", format_ranks(detail.ranks));
  if (!detail.hint.empty()) text += fmt::format("; {}", detail.hint);
  return text;
}

}  // namespace

Error::Error(ErrorDetail detail) : detail_(std::move(detail)), text_(compose(detail_)) {}

}  // namespace ddp
