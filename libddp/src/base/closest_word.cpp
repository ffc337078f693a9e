#include "base/closest_word.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::base {
namespace {

/// Levenshtein distance, one row at a time, or @p limit if it is not below that.
std::size_t changes_between(std::string_view a, std::string_view b, std::size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
    if (*std::min_element(row.begin(), row.end()) >= limit) return limit;
  }
  return std::min(row.back(), limit);
}

}  // namespace

std::string closest_word(std::string_view typed, std::span<const std::string> candidates, std::size_t most) {
  std::string best;
  std::size_t fewest = most + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t changes = changes_between(typed, candidate, fewest);
    if (changes < fewest) {
      fewest = changes;
      best = candidate;
    }
  }
  return best;
}

std::size_t plausible_changes(std::size_t letters, std::size_t most) {
  return std::clamp(letters / 3, std::size_t{1}, most);
}

Error unknown_word(std::string attempted, std::string_view word, std::span<const std::string> accepted) {
  std::string lower{word};
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string closest = closest_word(lower, accepted, kTypingMistake);
  return Error{{.code = ErrorCode::invalid_argument,
                .attempted = std::move(attempted),
                .cause = fmt::format("'{}' is not one of {}", word, fmt::join(accepted, ", ")),
                .hint = closest.empty() ? "" : fmt::format("did you mean '{}'?", closest)}};
}

std::vector<std::string> options_meant_by(std::string_view typed, std::span<const std::string> names) {
  if (std::find(names.begin(), names.end(), typed) != names.end()) return {std::string(typed)};
  std::vector<std::string> begun;
  std::copy_if(names.begin(), names.end(), std::back_inserter(begun),
               [&](const std::string& name) { return name.starts_with(typed); });
  return begun;
}

std::string closest_option(const std::string& typed, std::span<const std::string> names) {
  const std::string whole = closest_word(typed, names, std::max<std::size_t>(typed.size() / 3, 2));
  if (!whole.empty() || typed.size() < 5) return whole;
  std::vector<std::string> beginnings;
  for (const std::string& name : names) beginnings.push_back(name.substr(0, typed.size()));
  constexpr std::size_t kDashes = 2;
  const std::string beginning = closest_word(typed, beginnings, (typed.size() - kDashes) / 2);
  if (beginning.empty()) return {};
  return *std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.starts_with(beginning); });
}

}  // namespace ddp::base
