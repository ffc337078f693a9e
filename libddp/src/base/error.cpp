#include <ddp/error.hpp>

#include <cstdint>

#include <fmt/format.h>

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
