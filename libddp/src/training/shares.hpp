// Dealing an order of samples, or what is left of it, to ranks in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddp/distributed_sampler.hpp>

namespace ddp::training {

/// Throws Error(invalid_argument), with @p attempted, unless dataset_size >= 0 and 0 <= rank < ranks.
void check_share(const std::string& attempted, std::int64_t dataset_size, int ranks, int rank);

/// How many of @p left samples rank @p rank of @p ranks gets.
std::int64_t share_size(std::int64_t left, int ranks, int rank, Remainder remainder);

/// Of the epoch's order from place @p first on: this rank's samples. Where they are padded, the order starts again.
std::vector<std::int64_t> share_of(std::int64_t dataset_size, std::int64_t epoch, std::int64_t first, int ranks,
                                   int rank, const SamplerOptions& options);

}  // namespace ddp::training
