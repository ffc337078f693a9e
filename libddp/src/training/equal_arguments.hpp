// Arguments of samplers that have to be the same on all ranks of a group.
#pragma once

#include <cstdint>

#include <ddp/distributed_sampler.hpp>
#include <ddp/process_group.hpp>

namespace ddp::training {

/// Collective: one all_gather of 32 bytes. Throws Error(mismatch) on all ranks, which names the first argument that
/// differs with its values and ranks. @param attempted "making a DistributedSampler" @return @p dataset_size
std::int64_t equal_arguments(const char* attempted, const ProcessGroup& group, std::int64_t dataset_size,
                             const SamplerOptions& options);

}  // namespace ddp::training
