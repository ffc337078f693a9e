#include "command/option_word.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/closest_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools {

std::string full_option(std::string typed, std::span<const std::string> names, const std::string& hint) {
  const std::string word = typed;
  std::replace(typed.begin(), typed.end(), '_', '-');
  constexpr std::size_t kDashes = 2;
  const auto meant = typed.starts_with("--") && typed.size() > kDashes ? base::options_meant_by(typed, names)
                                                                       : std::vector<std::string>{};
  if (meant.size() == 1) return meant.front();
  if (meant.size() > 1) {
    throw UsageError{"reading the command line", fmt::format("option '{}' is ambiguous", word),
                     fmt::format("write one of {} in full", fmt::join(meant, ", "))};
  }
  const std::string closest = word.size() > kDashes ? base::closest_option(typed, names) : std::string();
  throw UsageError{"reading the command line", fmt::format("unknown option '{}'", word),
                   closest.empty() ? hint : fmt::format("did you mean '{}'?", closest)};
}

}  // namespace ddp::tools
