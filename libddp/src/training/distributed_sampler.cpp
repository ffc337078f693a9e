#include <ddp/distributed_sampler.hpp>

#include "training/equal_arguments.hpp"
#include "training/shares.hpp"

namespace ddp {

DistributedSampler::DistributedSampler(std::int64_t dataset_size, int ranks, int rank, SamplerOptions options)
    : dataset_size_(dataset_size), ranks_(ranks), rank_(rank), options_(options) {
  training::check_share("making a DistributedSampler", dataset_size, ranks, rank);
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size, const ProcessGroup& group, SamplerOptions options)
    : DistributedSampler(training::equal_arguments("making a DistributedSampler", group, dataset_size, options),
                         group.size(), group.rank(), options) {}

std::int64_t DistributedSampler::size() const noexcept {
  return training::share_size(dataset_size_, ranks_, rank_, options_.remainder);
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  return training::share_of(dataset_size_, epoch_, 0, ranks_, rank_, options_);
}

}  // namespace ddp
