// Element-wise combination of two arrays, for backends that leave the arithmetic to the host.
#pragma once

#include <cstddef>

#include <ddp/process_group.hpp>

namespace ddp::collectives {

/// out[i] = op(a[i], b[i]) for count elements; out may be a or b. avg is added like sum: dividing is a step of its own.
/// float16 and bfloat16 are combined in float32 and rounded to nearest even.
using ReduceKernel = void (*)(void* out, const void* a, const void* b, std::size_t count);

/// Never null: for every type and operation that ProcessGroup accepts.
ReduceKernel reduce_kernel(DType dtype, ReduceOp op);

/// values[i] /= divisor. Integers are truncated toward zero. Not for booleans.
void divide(void* values, DType dtype, std::size_t count, int divisor);

/// out[i] = in[i] / divisor, in the same way. out and in may be the same.
void divide_into(void* out, const void* in, DType dtype, std::size_t count, int divisor);

}  // namespace ddp::collectives
