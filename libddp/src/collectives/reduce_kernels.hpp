// The arithmetic of reductions, for backends that leave it to the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ddp/operation.hpp>

#include "collectives/reduce_loops_table.hpp"

namespace ddp::collectives {

/// Which part of a reduction a combination is: it decides where avg divides.
enum class Stage : std::uint8_t {
  whole,   ///< of all ranks' values
  first,   ///< of some ranks' values: the result goes into further combinations. A single rank's value, too, has to
           ///< pass a first stage before it meets results of others.
  middle,  ///< of results of earlier stages
  last,    ///< of results that together stand for all ranks
};

/// Whether avg divides values of this type before they are added.
bool divides_first(DType dtype) noexcept;
/// What a sum of @p ranks values is divided by: their number in averages, else the reciprocal of the prescale.
double divisor_of(const Operation& operation, int ranks) noexcept;

/// The arithmetic of one reduction. Cheap to make and to copy.
///
/// The result is the same bits on every processor and whatever count a call is cut into; it depends on the order of
/// the sources, and on which of them are combined in one call:
/// - Sources are combined in the given order, types narrower than float32 in it, rounded once to nearest even.
/// - avg divides by the number of ranks, not by multiplication with its reciprocal. Narrow types are divided in float32
///   in the stage that reads ranks' values (whole or first), before anything is rounded to them: partial sums in
///   float16 would overflow. The others are divided in the stage that completes the sum (whole or last), which is more
///   exact, and for integers the only right way: their quotient is truncated toward zero.
/// - min and max give NaN if any value is one. A NaN that comes out of arithmetic is the positive quiet one.
/// - Complex numbers are two real ones, and have neither product nor order.
/// - Booleans are bytes; any but 0 count as true and come out as 1.
/// - Rounding is to nearest even and subnormal numbers are kept, whatever the thread's control register says.
class Reduction {
 public:
  /// @param ranks what avg divides by: all ranks of the reduction, however many a single combination reads.
  /// Throws Error when DDP_SIMD is wrong.
  Reduction(DType dtype, ReduceOp op, int ranks) : Reduction(dtype, op, ranks, reduce_loops()) {}
  Reduction(const Operation& operation, int ranks) : Reduction(operation.dtype, operation.reduce_op, ranks) {
    divide_by(divisor_of(operation, ranks));
  }
  /// With the given loops.
  Reduction(DType dtype, ReduceOp op, int ranks, const ReduceLoopsTable& loops) noexcept;

  /// out[i] = sources[0][i] op sources[1][i] op ..., for @p count elements. At least one source. @p out may be one of
  /// them, but not overlap one otherwise. No alignment needed.
  void combine(void* out, std::span<const void* const> sources, std::size_t count,
               Stage stage = Stage::whole) const noexcept;

 private:
  friend void divide_into(void* out, const void* in, DType dtype, std::size_t count, double divisor);
  void divide_by(double divisor) noexcept;

  ReduceLoop loop_;
  DType dtype_;  ///< of components
  std::size_t components_;
  double first_divisor_ = 1;  // 1: nothing is divided
  double last_divisor_ = 1;
};

/// values[i] /= divisor. Integers are truncated toward zero. Not for booleans.
void divide(void* values, DType dtype, std::size_t count, double divisor);

/// out[i] = in[i] / divisor, in the same way. out and in may be the same.
void divide_into(void* out, const void* in, DType dtype, std::size_t count, double divisor);

}  // namespace ddp::collectives
