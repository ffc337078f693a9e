// Dealing an order of samples, or what is left of it, to ranks in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddp/distributed_sampler.hpp>
#include <ddp/process_group.hpp>

namespace ddp::training {

/// Throws Error(invalid_argument), with @p attempted, unless dataset_size >= 0 and 0 <= rank < ranks.
void check_share(const std::string& attempted, std::int64_t dataset_size, int ranks, int rank);

/// How many of @p left samples rank @p rank of @p ranks gets.
std::int64_t share_size(std::int64_t left, int ranks, int rank, Remainder remainder);

/// For the epoch's order from place @p first on: this rank's samples. Where they are padded, the order starts again.
std::vector<std::int64_t> share_of(std::int64_t dataset_size, std::int64_t epoch, std::int64_t first, int ranks,
                                   int rank, const SamplerOptions& options);

// ---- The permutations of torch.randperm on a CPU, so that samplers deal the samples that torch's would.

/// Above it torch draws 64 bits a number (ATen/native/TensorFactories.cpp, randperm_cpu).
inline constexpr std::int64_t kManyNumbers = 0xffff'ffff / 20;

/// 0 to @p size - 1 in the order of torch.randperm(size) with a generator of @p seed, of which MT19937 takes the lowest
/// 32 bits: for fewer than @p many numbers Fisher and Yates' shuffle with 32 bits a number, else its inside-out form
/// with 64. Equal to torch 2.13, on both sides of the limit. O(size) time, 8 * size bytes.
std::vector<std::int64_t> random_permutation(std::int64_t size, std::int64_t seed, std::int64_t many = kManyNumbers);

// ---- Arguments of samplers that have to be the same on all ranks of a group.

/// Collective: one all_gather of 32 bytes. Throws Error(mismatch) on all ranks, which names the first argument that
/// differs with its values and ranks. @param attempted "making a DistributedSampler" @return @p dataset_size
std::int64_t equal_arguments(const char* attempted, const ProcessGroup& group, std::int64_t dataset_size,
                             const SamplerOptions& options);

}  // namespace ddp::training
