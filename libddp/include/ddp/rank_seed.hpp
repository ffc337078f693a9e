// Seeds that differ from rank to rank and stay the same from run to run: for dropout and augmentation, not for what all
// ranks must do alike (initial values, samplers).
#pragma once

#include <cstdint>

namespace ddp {

/// Output number rank + 1 of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195) started with @p seed:
/// seed + (rank + 1) * 0x9e3779b97f4a7c15, mixed. Ranks of one seed never have the same; neighbouring ranks and seeds
/// have unlike bits, which seed + rank does not give. For the workers of a rank: rank_seed(rank_seed(seed, rank),
/// worker). Some generators take the lowest 32 bits only, PyTorch's on CPUs does: those of 10,000 ranks collide with a
/// chance of one in a hundred.
std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept;

}  // namespace ddp
