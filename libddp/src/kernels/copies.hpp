// Flattening of many tensors into one memory and back, with scale and cast, sums of many, and filling: each in one
// launch for every 168 tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/executor.hpp"

namespace ddp::kernels {

/// How numbers are stored. raw: bytes that are moved as they are.
enum class Format : std::uint8_t { float32, float64, float16, bfloat16, float8_e4m3, float8_e5m2, raw };
std::string_view to_string(Format format) noexcept;
std::size_t size_of(Format format) noexcept;

/// A tensor's memory. Aligned to its elements; may be empty.
struct Part {
  void* data;
  std::size_t count;  ///< elements
};

/// One tensor's way from one memory to another, which do not overlap.
struct Piece {
  const void* from;
  void* to;
  std::size_t count;
};

/// Element by element: to = cast(from * scale). The product is computed in float32 (float64: in float64) and rounded
/// once to the new format, as number_formats.hpp says.
///
/// Casts are between float32 and each of the others but float64; every format but the 8-bit ones can be copied to
/// itself, raw without scale. Throws Error(invalid_argument) for others, and for memory that is not aligned to its
/// elements.
void copy(Executor& executor, std::span<const Piece> pieces, Format from, Format to, double scale = 1);

/// The tensors one after the other from @p flat on: a bucket, filled by one launch.
void flatten(Executor& executor, std::span<const Part> tensors, Format of_tensors, void* flat, Format of_flat,
             double scale = 1);
void unflatten(Executor& executor, const void* flat, Format of_flat, std::span<const Part> tensors, Format of_tensors,
               double scale = 1);

/// to += from, floats.
void add(Executor& executor, std::span<const Piece> pieces);
/// to = from where that is finite, else 0; floats.
void copy_finite(Executor& executor, std::span<const Piece> pieces);

/// Every element becomes @p element, which has 1, 2, 4 or 8 bytes.
void fill(Executor& executor, std::span<const Part> tensors, std::span<const std::byte> element);

// Means whose bits do not depend on the order of their terms, since these are added as integers.

/// A tensor and its sums: two words for each element, and one for the values that had no place there.
struct ExactTensor {
  void* values;
  std::size_t count;
  std::int64_t* sums;
  std::int64_t* broken;
};
inline constexpr std::int64_t kMostExactTerms = std::int64_t{1} << 19U;

/// Adds the values, each rounded to a multiple of 2^-64. Those that are not finite, or have a magnitude of 2^23 and
/// more, are counted instead. Sums, too, can be added, word by word; all 0 is the sum of nothing.
/// @param format float32, float64, float16 or bfloat16; throws Error(invalid_argument) for others.
void add_exactly(Executor& executor, std::span<const ExactTensor> tensors, Format format);
/// values = sums / *@p terms, at most kMostExactTerms; all NaN in a tensor with values that had no place.
void exact_means(Executor& executor, std::span<const ExactTensor> tensors, Format format, const std::int64_t* terms);

}  // namespace ddp::kernels
