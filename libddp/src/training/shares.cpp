#include "training/shares.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "training/random_permutation.hpp"

namespace ddp::training {

void check_share(const std::string& attempted, std::int64_t dataset_size, int ranks, int rank) {
  if (dataset_size < 0) base::throw_invalid_argument(attempted, fmt::format("{} samples", dataset_size), {});
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    base::throw_invalid_argument(attempted, fmt::format("rank {} of {} ranks", rank, ranks),
                                 "ranks are numbered from 0 to the number of ranks less one");
  }
}

std::int64_t share_size(std::int64_t left, int ranks, int rank, Remainder remainder) {
  const std::int64_t all_have = left / ranks;
  const std::int64_t more = left % ranks;
  if (more == 0 || remainder == Remainder::drop) return all_have;
  return remainder == Remainder::pad || rank < more ? all_have + 1 : all_have;
}

std::vector<std::int64_t> share_of(std::int64_t dataset_size, std::int64_t epoch, std::int64_t first, int ranks,
                                   int rank, const SamplerOptions& options) {
  const std::int64_t size = share_size(dataset_size - first, ranks, rank, options.remainder);
  std::vector<std::int64_t> order;
  if (options.shuffle && size > 0) {
    // two's complement, as torch seeds its generator
    const auto seed = static_cast<std::uint64_t>(options.seed) + static_cast<std::uint64_t>(epoch);
    order = random_permutation(dataset_size, static_cast<std::int64_t>(seed));
  }
  std::vector<std::int64_t> share;
  share.reserve(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t place = (first + rank + i * ranks) % dataset_size;
    share.push_back(options.shuffle ? order[static_cast<std::size_t>(place)] : place);
  }
  return share;
}

}  // namespace ddp::training
