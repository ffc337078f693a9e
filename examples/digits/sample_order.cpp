#include "digits/sample_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ddp/error.hpp>

namespace digits {

std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // An odd multiplier keeps (seed, epoch) and (seed + 1, epoch - 1) apart.
  std::mt19937_64 generator{seed + epoch * 0x9e3779b97f4a7c15U};
  // Fisher and Yates. The modulo favours small numbers by less than count / 2^64.
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[static_cast<std::size_t>(generator() % left)]);
  }
  return order;
}

std::vector<std::span<const std::size_t>> global_batches(std::span<const std::size_t> order, std::size_t batch_size) {
  if (batch_size == 0) {
    throw ddp::Error{{.code = ddp::ErrorCode::invalid_argument,
                      .attempted = "cutting the samples into batches",
                      .cause = "the batch size is 0",
                      .hint = "give a batch size of at least 1"}};
  }
  std::vector<std::span<const std::size_t>> batches;
  for (std::size_t first = 0; first < order.size(); first += batch_size) {
    batches.push_back(order.subspan(first, std::min(batch_size, order.size() - first)));
  }
  return batches;
}

}  // namespace digits
