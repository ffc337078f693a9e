// The permutations of torch.randperm on a CPU, so that samplers deal the samples that torch's would.
#pragma once

#include <cstdint>
#include <vector>

namespace ddp::training {

/// Above it torch draws 64 bits a number (ATen/native/TensorFactories.cpp, randperm_cpu).
inline constexpr std::int64_t kManyNumbers = 0xffff'ffff / 20;

/// 0 to @p size - 1 in the order of torch.randperm(size) with a generator of @p seed, of which MT19937 takes the lowest
/// 32 bits: for fewer than @p many numbers Fisher and Yates' shuffle with 32 bits a number, else its inside-out form
/// with 64. Equal to torch 2.13, on both sides of the limit. O(size) time, 8 * size bytes.
std::vector<std::int64_t> random_permutation(std::int64_t size, std::int64_t seed, std::int64_t many = kManyNumbers);

}  // namespace ddp::training
