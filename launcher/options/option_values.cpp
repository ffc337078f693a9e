#include "options/option_values.hpp"

#include <charconv>

#include <fmt/format.h>

#include "report/exit_error.hpp"

namespace ddp::launcher {
namespace {

constexpr double kLongestSeconds = 86'400;

[[noreturn]] void reject(const std::string& option, const std::string& text, std::string_view why,
                         std::string allowed) {
  throw ExitError{kExitUsage,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = fmt::format("reading {}", option),
                   .cause = fmt::format("'{}' {}", text, why),
                   .native = {},
                   .ranks = {},
                   .hint = std::move(allowed)}};
}

}  // namespace

ExitError usage_error(const std::string& option, const Error& error) {
  ErrorDetail detail = error.detail();
  detail.attempted = fmt::format("reading {}", option);
  return ExitError{kExitUsage, std::move(detail)};
}

int parse_count(const std::string& option, const std::string& text, int highest) {
  const std::string allowed = fmt::format("give a whole number from 1 to {}", highest);
  int value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (end != last || status == std::errc::invalid_argument) reject(option, text, "is not a whole number", allowed);
  if (status == std::errc::result_out_of_range) reject(option, text, "is out of range", allowed);
  if (value < 1) reject(option, text, "is too small", allowed);
  if (value > highest) reject(option, text, "is too large", allowed);
  return value;
}

std::chrono::milliseconds parse_seconds(const std::string& option, const std::string& text) {
  const std::string allowed = fmt::format("give a number of seconds from 0 to {}", kLongestSeconds);
  double value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (end != last || status == std::errc::invalid_argument) reject(option, text, "is not a number of seconds", allowed);
  // Written so that NaN is refused too.
  if (status != std::errc{} || !(value >= 0 && value <= kLongestSeconds))
    reject(option, text, "is out of range", allowed);
  return std::chrono::milliseconds(static_cast<long long>(value * 1000));
}

}  // namespace ddp::launcher
