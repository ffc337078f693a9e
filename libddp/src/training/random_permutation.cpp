#include "training/random_permutation.hpp"

#include <numeric>
#include <random>
#include <utility>

namespace ddp::training {

std::vector<std::int64_t> random_permutation(std::int64_t size, std::int64_t seed, std::int64_t many) {
  const auto count = static_cast<std::uint64_t>(size);
  std::vector<std::int64_t> order(count);
  std::mt19937 random{static_cast<std::uint32_t>(seed)};
  if (size < many) {
    std::iota(order.begin(), order.end(), 0);
    for (std::uint64_t i = 0; i + 1 < count; ++i) std::swap(order[i], order[i + random() % (count - i)]);
    return order;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t high = static_cast<std::uint64_t>(random()) << 32U;
    const std::uint64_t place = (high | random()) % (i + 1);
    order[i] = order[place];
    order[place] = static_cast<std::int64_t>(i);
  }
  return order;
}

}  // namespace ddp::training
