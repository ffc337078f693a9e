// In which order the samples are learned, the same on every rank without a word of communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace digits {

/// The numbers [0, count), shuffled. Depends on nothing but the arguments: the standard fixes the numbers that
/// std::mt19937_64 gives but not what std::shuffle makes of them, so ranks built with different libraries would differ.
std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

/// Cuts @p order into consecutive batches of @p batch_size samples, the last of which may be smaller. They are views of
/// @p order. Throws ddp::Error(invalid_argument) for a batch size of 0.
std::vector<std::span<const std::size_t>> global_batches(std::span<const std::size_t> order, std::size_t batch_size);

/// A number in [0, 1) from the upper 53 bits of the next one: all that a double can hold.
inline double next_unit(std::mt19937_64& generator) { return static_cast<double>(generator() >> 11U) * 0x1p-53; }

}  // namespace digits
