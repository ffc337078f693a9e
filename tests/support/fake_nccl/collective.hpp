// Sizes, conversions and reductions of NCCL's types, plainly. Types of 8 and 16 bits are added in float and rounded
// once: NCCL rounds after each addition, in an order that depends on its algorithm, so tests must allow for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "settings.hpp"

namespace fake_nccl {

/// Bytes; 0: no such type, or none in the version that the library says it is.
std::size_t size_of(ncclDataType_t type);

/// An operation as it runs.
struct Reduction {
  enum class Kind { sum, product, maximum, minimum, average, scaled_sum } kind = Kind::sum;
  bool scalar_in_memory = false;  ///< of scaled_sum: read when the operation runs
  const void* scalar = nullptr;   ///< if so
  std::uint64_t immediate = 0;    ///< else its bytes
};

/// @p count elements at @p data times the scalar of @p reduction; only for scaled_sum. NCCL does so on each rank before
/// it adds (ncclDevPreMulSum).
void scale(const Reduction& reduction, ncclDataType_t type, void* data, std::size_t count);

/// All @p inputs into @p output. Average: of integers rounded towards zero (ncclDevSumPostDiv).
void reduce(const Reduction& reduction, ncclDataType_t type, const std::vector<const std::byte*>& inputs, void* output,
            std::size_t count);

/// For tests.
double to_double(ncclDataType_t type, const void* element);
void from_double(ncclDataType_t type, double value, void* element);

}  // namespace fake_nccl
