#include "sharded_training/replica_difference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace ddp::sharded_training {
namespace {

template <class Scalar>
void compare_tensors(const std::string& name, const std::vector<Scalar>& replica, const std::vector<Scalar>& reference,
                     ReplicaDifference& largest) {
  double magnitude = 0;
  for (const Scalar value : reference) magnitude = std::max(magnitude, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const auto [mine, expected] = std::pair{static_cast<double>(replica[i]), static_cast<double>(reference[i])};
    if (mine == expected) continue;
    // Also where the reference is all 0 (x / 0) and where something is not a number (every comparison is false).
    double relative = std::abs(mine - expected) / magnitude;
    if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
    if (relative > largest.relative) {
      largest = {.relative = relative, .where = fmt::format("{}[{}]", name, i), .replica = mine, .reference = expected};
    }
  }
}

}  // namespace

template <class Scalar>
ReplicaDifference largest_difference(const digits::Network<Scalar>& replica, const digits::Network<Scalar>& reference,
                                     bool with_gradients) {
  ReplicaDifference largest;
  for (std::size_t p = 0; p < reference.parameters().size(); ++p) {
    const auto& mine = replica.parameters()[p];
    const auto& expected = reference.parameters()[p];
    compare_tensors(expected.name, mine.value, expected.value, largest);
    if (with_gradients) compare_tensors("gradient of " + expected.name, mine.gradient, expected.gradient, largest);
  }
  return largest;
}

template ReplicaDifference largest_difference(const digits::Network<float>&, const digits::Network<float>&, bool);
template ReplicaDifference largest_difference(const digits::Network<double>&, const digits::Network<double>&, bool);

}  // namespace ddp::sharded_training
