#include "base/closest_word.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

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

}  // namespace ddp::base
