// What gradient compression needs: quantization to 8 bits, per tensor and per channel, and the selection of the largest
// elements. All memory is the executor's: a device's for a device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/executor.hpp"

namespace ddp::kernels {

enum class Quantization : std::uint8_t {
  affine,     ///< uint8: from the smallest to the largest value, in 255 steps; 0 is one of them
  symmetric,  ///< int8: -127 to 127, 0 is 0
};

/// How many elements share a scale: all of them (per tensor), or each row of so many (per channel; the last one may be
/// shorter).
struct Rows {
  std::size_t count;  ///< elements of the tensor
  std::size_t row;    ///< elements of a row, at least 1
  std::size_t number() const { return count == 0 ? 0 : (count - 1) / row + 1; }
};

/// to[i] = round(from[i] / scale) + zero_point, to nearest even, with what each row needs in @p scales. An error of at
/// most half a step, and rounding. A row with NaN or infinity comes back as NaN, so that who checks gradients sees it.
/// Same meaning as PyTorch's quantize_per_tensor and quantize_per_channel with a MinMaxObserver, but for its smallest
/// scale: gradients below 1e-7 are no zeros here.
/// @param to rows.count bytes. @param scales rows.number(). @param workspace 8 bytes for each row.
/// Throws Error(invalid_argument) for a row of 0 elements, and for more than 2^31 - 1 blocks.
void quantize(Executor& executor, const float* from, Rows rows, Quantization kind, void* to, RowScale* scales,
              std::uint32_t* workspace);

/// Quantized tensors that are added up: @p stride_bytes from each one's elements to the next one's, and from its scales
/// to the next one's; a multiple of 4.
struct Messages {
  std::size_t number = 1;  ///< at least 1
  std::size_t stride_bytes = 0;
};

/// to[i] = the messages' sum of (from[i] - zero_point) * scale in their order, divided by @p divisor.
void dequantize(Executor& executor, const void* from, const RowScale* scales, Messages messages, Rows rows,
                Quantization kind, float* to, int divisor = 1);

/// The @p wanted elements of the largest magnitude: of equal ones those with the lowest index; NaN counts as largest.
/// Positions ascending, and the values there. Reads the tensor six times.
/// @param count at most 2^31. @param wanted at most count.
/// Throws Error(invalid_argument) otherwise.
void select_largest(Executor& executor, const float* from, std::size_t count, std::size_t wanted,
                    std::uint32_t* indices, float* values, SelectionWorkspace* workspace);

/// to[indices[i]] += values[i] / divisor; each index at most once.
void scatter_add(Executor& executor, const std::uint32_t* indices, const float* values, std::size_t count, float* to,
                 int divisor = 1);
/// to[indices[i]] = 0.
void scatter_zero(Executor& executor, const std::uint32_t* indices, std::size_t count, float* to);

}  // namespace ddp::kernels
