#include "base/word_choice.hpp"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"

namespace ddp::base {

Error unknown_word(std::string attempted, std::string_view word, std::span<const std::string> accepted) {
  std::string lower{word};
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string closest = closest_word(lower, accepted, kTypingMistake);
  return Error{{.code = ErrorCode::invalid_argument,
                .attempted = std::move(attempted),
                .cause = fmt::format("'{}' is not one of {}", word, fmt::join(accepted, ", ")),
                .hint = closest.empty() ? "" : fmt::format("did you mean '{}'?", closest)}};
}

}  // namespace ddp::base
