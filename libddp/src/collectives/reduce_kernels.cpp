#include "collectives/reduce_kernels.hpp"

#include <array>
#include <cstring>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace ddp::collectives {
namespace {

/// The default floating-point control while it lives: programs may have switched on flushing of subnormal numbers, in
/// some of their threads or ranks.
class DefaultFloatControl {
 public:
#ifdef __SSE2__
  DefaultFloatControl() noexcept : before_(_mm_getcsr()) {
    if ((before_ & kControl) != kDefault) _mm_setcsr((before_ & ~kControl) | kDefault);
  }
  ~DefaultFloatControl() {
    if ((before_ & kControl) != kDefault) _mm_setcsr(before_);
  }

 private:
  // Rounding, flushing (FTZ, DAZ) and exception masks; the bits below are sticky flags (Intel SDM 1, 10.2.3).
  static constexpr unsigned int kControl = 0xffc0U;
  static constexpr unsigned int kDefault = 0x1f80U;
  unsigned int before_;
#else
  DefaultFloatControl() noexcept {}
  ~DefaultFloatControl() {}
#endif

 public:
  DefaultFloatControl& operator=(DefaultFloatControl&&) = delete;
};

const ReduceLoops& loops_of(const ReduceLoopsTable& table, DType dtype) {
  switch (dtype) {
    case DType::float64: return table.float64;
    case DType::float16: return table.float16;
    case DType::bfloat16: return table.bfloat16;
    case DType::int8: return table.int8;
    case DType::int32: return table.int32;
    case DType::int64: return table.int64;
    case DType::uint8: return table.uint8;
    case DType::boolean: return table.boolean;
    case DType::uint32: return rare_reduce_loops().uint32;
    case DType::uint64: return rare_reduce_loops().uint64;
    case DType::float8_e4m3fn: return rare_reduce_loops().float8_e4m3fn;
    case DType::float8_e5m2: return rare_reduce_loops().float8_e5m2;
    case DType::complex64:
    case DType::complex128:  // by component
    case DType::float32: break;
  }
  return table.float32;
}

ReduceLoop loop_of(const ReduceLoops& loops, ReduceOp op) {
  switch (op) {
    case ReduceOp::product: return loops.product;
    case ReduceOp::min: return loops.min;
    case ReduceOp::max: return loops.max;
    case ReduceOp::sum:
    case ReduceOp::avg: break;
  }
  return loops.sum;
}

}  // namespace

bool divides_first(DType dtype) noexcept {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float8_e4m3fn ||
         dtype == DType::float8_e5m2;
}

double divisor_of(const Operation& operation, int ranks) noexcept {
  return operation.reduce_op == ReduceOp::avg ? ranks : 1 / operation.prescale;
}

Reduction::Reduction(DType dtype, ReduceOp op, int ranks, const ReduceLoopsTable& loops) noexcept
    : loop_(loop_of(loops_of(loops, component_of(dtype)), op)),
      dtype_(component_of(dtype)),
      components_(size_of(dtype) / size_of(dtype_)) {
  if (op == ReduceOp::avg) divide_by(ranks);
}

void Reduction::divide_by(double divisor) noexcept {
  (divides_first(dtype_) ? first_divisor_ : last_divisor_) = divisor;
}

void Reduction::combine(void* out, std::span<const void* const> sources, std::size_t count,
                        Stage stage) const noexcept {
  if (count == 0) return;
  count *= components_;
  double divisor = 1;
  if (stage == Stage::whole || stage == Stage::first) divisor = first_divisor_;
  if ((stage == Stage::whole || stage == Stage::last) && last_divisor_ != 1) divisor = last_divisor_;
  if (sources.size() == 1 && divisor == 1 && dtype_ != DType::boolean) {
    if (out != sources[0]) std::memcpy(out, sources[0], count * size_of(dtype_));
    return;
  }
  const DefaultFloatControl control;
  loop_(out, sources.data(), sources.size(), count, divisor);
}

void divide_into(void* out, const void* in, DType dtype, std::size_t count, double divisor) {
  Reduction reduction(dtype, ReduceOp::sum, 1);
  reduction.divide_by(divisor);
  reduction.combine(out, std::array{in}, count);
}

void divide(void* values, DType dtype, std::size_t count, double divisor) {
  divide_into(values, values, dtype, count, divisor);
}

}  // namespace ddp::collectives
