// Seeds that differ from rank to rank and stay the same from run to run: for dropout and augmentation, not for what
// must be equal on all ranks (initial values, samplers).
#pragma once

#include <cstdint>

namespace ddp {

/// Output number rank + 1 of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195) started with @p seed:
/// seed + (rank + 1) * 0x9e3779b97f4a7c15, mixed. Ranks of one seed never share a value; neighbouring ranks and seeds
/// have unrelated bits, unlike seed + rank. For the workers of a rank: rank_seed(rank_seed(seed, rank), worker). Some
/// generators use only the lowest 32 bits, such as PyTorch's on CPUs: among 10,000 ranks, two of those are equal with a
/// probability of one in a hundred.
std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept;

}  // namespace ddp
