#include "collectives/reduce_kernels.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "collectives/half_conversion.hpp"

namespace ddp::collectives {
namespace {

// Arithmetic on stored elements: half types in float, integers in an unsigned type so that sums wrap without
// undefined behaviour, everything else as it is.
template <class T>
struct Arithmetic {
  using Type = T;
  static Type load(T value) { return value; }
  static T store(Type value) { return value; }
};
template <>
struct Arithmetic<Half> {
  using Type = float;
  static float load(Half value) { return half_to_float(value); }
  static Half store(float value) { return float_to_half(value); }
};
template <>
struct Arithmetic<BFloat16> {
  using Type = float;
  static float load(BFloat16 value) { return half_to_float(value); }
  static BFloat16 store(float value) { return float_to_bfloat16(value); }
};

template <class T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  } else {
    return a + b;
  }
}

template <class T>
T wrapping_product(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // in 64 bits, where the product of two narrow values cannot overflow a signed type after promotion
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// min and max of floats keep a NaN of either side, as PyTorch's do.
template <class T>
T smaller(T a, T b) {
  return a < b || a != a ? a : b;
}
template <class T>
T larger(T a, T b) {
  return a > b || a != a ? a : b;
}

template <class T, auto kCombine>
void combine(void* out, const void* a, const void* b, std::size_t count) {
  using A = Arithmetic<T>;
  auto* to = static_cast<T*>(out);
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  for (std::size_t i = 0; i < count; ++i) to[i] = A::store(kCombine(A::load(left[i]), A::load(right[i])));
}

template <class T>
ReduceKernel kernel_for(ReduceOp op) {
  using A = typename Arithmetic<T>::Type;
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return &combine<T, &wrapping_sum<A>>;
    case ReduceOp::min: return &combine<T, &smaller<A>>;
    case ReduceOp::max: return &combine<T, &larger<A>>;
    case ReduceOp::product: return &combine<T, &wrapping_product<A>>;
  }
  return nullptr;
}

// Booleans are bytes that hold 0 or 1; any other byte counts as true and comes out as 1.
template <bool kAll>
void combine_booleans(void* out, const void* a, const void* b, std::size_t count) {
  auto* to = static_cast<std::uint8_t*>(out);
  const auto* left = static_cast<const std::uint8_t*>(a);
  const auto* right = static_cast<const std::uint8_t*>(b);
  for (std::size_t i = 0; i < count; ++i) {
    const bool x = left[i] != 0;
    const bool y = right[i] != 0;
    to[i] = static_cast<std::uint8_t>(kAll ? (x && y) : (x || y));
  }
}

template <class T>
void divide_elements(void* out, const void* in, std::size_t count, int divisor) {
  using A = Arithmetic<T>;
  const auto by = static_cast<typename A::Type>(divisor);
  auto* to = static_cast<T*>(out);
  const auto* from = static_cast<const T*>(in);
  for (std::size_t i = 0; i < count; ++i) to[i] = A::store(static_cast<typename A::Type>(A::load(from[i]) / by));
}

// Narrow integers cannot hold every divisor, so the quotient is formed in 64 bits.
template <class T>
void divide_integers(void* out, const void* in, std::size_t count, int divisor) {
  auto* to = static_cast<T*>(out);
  const auto* from = static_cast<const T*>(in);
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<std::int64_t>(from[i]) / divisor);
}

}  // namespace

ReduceKernel reduce_kernel(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::float32: return kernel_for<float>(op);
    case DType::float64: return kernel_for<double>(op);
    case DType::float16: return kernel_for<Half>(op);
    case DType::bfloat16: return kernel_for<BFloat16>(op);
    case DType::int8: return kernel_for<std::int8_t>(op);
    case DType::int32: return kernel_for<std::int32_t>(op);
    case DType::int64: return kernel_for<std::int64_t>(op);
    case DType::uint8: return kernel_for<std::uint8_t>(op);
    case DType::boolean:
      return op == ReduceOp::min || op == ReduceOp::product ? &combine_booleans<true> : &combine_booleans<false>;
  }
  return nullptr;
}

void divide_into(void* out, const void* in, DType dtype, std::size_t count, int divisor) {
  switch (dtype) {
    case DType::float32: return divide_elements<float>(out, in, count, divisor);
    case DType::float64: return divide_elements<double>(out, in, count, divisor);
    case DType::float16: return divide_elements<Half>(out, in, count, divisor);
    case DType::bfloat16: return divide_elements<BFloat16>(out, in, count, divisor);
    case DType::int8: return divide_integers<std::int8_t>(out, in, count, divisor);
    case DType::int32: return divide_integers<std::int32_t>(out, in, count, divisor);
    case DType::int64: return divide_integers<std::int64_t>(out, in, count, divisor);
    case DType::uint8: return divide_integers<std::uint8_t>(out, in, count, divisor);
    case DType::boolean: return;
  }
}

void divide(void* values, DType dtype, std::size_t count, int divisor) {
  divide_into(values, values, dtype, count, divisor);
}

}  // namespace ddp::collectives
