// The loops of reduce_kernels.hpp, compiled once for each set of vector instructions: reduce_loops_<set>.cpp includes
// this file and is compiled with the set's flags. Everything here has internal linkage, and nothing calls functions
// that other files may emit as well, so that no instruction leaks into code for other processors.
//
// All sets give the same bits: each element is computed by the same sequence of IEEE 754 operations, without fused
// multiply-add, and a NaN is always stored as the positive quiet one, because which NaN an instruction with two of them
// returns depends on the order of its operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <ddp/tensor_view.hpp>

#include "collectives/half_conversion.hpp"
#include "collectives/reduce_loops_table.hpp"

namespace ddp::collectives {
namespace {

/// Tensors need not be aligned, and shared memory has no type.
template <class T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  T value;
};

struct Boolean {
  std::uint8_t byte;  ///< 0 is false, anything else true
};

// Arithmetic on stored elements: narrow types in float; integers in an unsigned type, so that sums and products wrap
// without undefined behaviour; the rest as it is. load and store are one element's, also where vectors exist.
template <class T>
struct Element {
  using Value = T;
  static Value load(T stored) { return stored; }
  static T store(Value value) { return value; }
};
template <>
struct Element<Half> {
  using Value = float;
  static float load(Half stored) { return narrow_to_float(stored); }
  static Half store(float value) { return float_to_half(value); }
};
template <>
struct Element<BFloat16> {
  using Value = float;
  static float load(BFloat16 stored) { return narrow_to_float(stored); }
  static BFloat16 store(float value) { return float_to_bfloat16(value); }
};
template <>
struct Element<Float8E4M3> {
  using Value = float;
  static float load(Float8E4M3 stored) { return narrow_to_float(stored); }
  static Float8E4M3 store(float value) { return float_to_e4m3(value); }
};
template <>
struct Element<Float8E5M2> {
  using Value = float;
  static float load(Float8E5M2 stored) { return narrow_to_float(stored); }
  static Float8E5M2 store(float value) { return float_to_e5m2(value); }
};
template <>
struct Element<Boolean> {
  using Value = std::uint8_t;
  static std::uint8_t load(Boolean stored) { return static_cast<std::uint8_t>(stored.byte != 0); }
  static Boolean store(std::uint8_t value) { return {value}; }
};

/// Elements one by one; the compiler makes vectors of them.
template <class T>
struct Single {
  static constexpr std::size_t kWidth = 1;
  using Value = typename Element<T>::Value;
  static Value load(const void* from, std::size_t i) {
    return Element<T>::load(static_cast<const Unaligned<T>*>(from)[i].value);
  }
  static void store(void* to, std::size_t i, Value value) {
    static_cast<Unaligned<T>*>(to)[i].value = Element<T>::store(value);
  }
  static Value resume(const Value* partial) { return *partial; }
  static void suspend(Value* partial, Value value) { *partial = value; }
  static Value all(Value value) { return value; }
};

/// Vectors where they have to be written out: what converts float16 is an instruction of its own, and of bfloat16's
/// conversions GCC 12 makes three times slower code.
template <class T>
struct Several : Single<T> {};

#if defined(__AVX512F__)
struct Floats16 {
  static constexpr std::size_t kWidth = 16;
  using Value = __m512;
  static __m256i read(const void* from, std::size_t i) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const std::byte*>(from) + 2 * i));
  }
  static void write(void* to, std::size_t i, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<std::byte*>(to) + 2 * i), halves);
  }
  static Value resume(const float* partial) { return _mm512_loadu_ps(partial); }
  static void suspend(float* partial, Value value) { _mm512_storeu_ps(partial, value); }
  static Value all(float value) { return _mm512_set1_ps(value); }
};
template <>
struct Several<Half> : Floats16 {
  // masked, because GCC 12 warns of the plain ones (GCC bug 105593)
  static Value load(const void* from, std::size_t i) { return _mm512_maskz_cvtph_ps(0xffff, read(from, i)); }
  static void store(void* to, std::size_t i, Value value) {
    write(to, i, _mm512_maskz_cvtps_ph(0xffff, value, _MM_FROUND_TO_NEAREST_INT));
  }
};
template <>
struct Several<BFloat16> : Floats16 {
  static Value load(const void* from, std::size_t i) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, read(from, i)), 16));
  }
  // as float_to_bfloat16, without its care for NaN: they are stored as 0x7fc00000, which rounding does not change
  static void store(void* to, std::size_t i, Value value) {
    const auto bits = (__v16su)_mm512_castps_si512(value);
    write(to, i, _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U)));
  }
};
#elif defined(__F16C__)
struct Floats8 {
  static constexpr std::size_t kWidth = 8;
  using Value = __m256;
  static __m128i read(const void* from, std::size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const std::byte*>(from) + 2 * i));
  }
  static void write(void* to, std::size_t i, __m128i halves) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::byte*>(to) + 2 * i), halves);
  }
  static Value resume(const float* partial) { return _mm256_loadu_ps(partial); }
  static void suspend(float* partial, Value value) { _mm256_storeu_ps(partial, value); }
  static Value all(float value) { return _mm256_set1_ps(value); }
};
template <>
struct Several<Half> : Floats8 {
  static Value load(const void* from, std::size_t i) { return _mm256_cvtph_ps(read(from, i)); }
  static void store(void* to, std::size_t i, Value value) {
    write(to, i, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};
template <>
struct Several<BFloat16> : Floats8 {
  static Value load(const void* from, std::size_t i) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(read(from, i)), 16));
  }
  // as float_to_bfloat16, without its care for NaN: they are stored as 0x7fc00000, which rounding does not change
  static void store(void* to, std::size_t i, Value value) {
    const auto bits = (__v8su)_mm256_castps_si256(value);
    const auto rounded = (__m256i)((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);  // within 128 bits: 0-3, 0-3, 4-7, 4-7
    write(to, i, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0))));
  }
};
#endif

struct Sum {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      using Unsigned = std::make_unsigned_t<V>;
      return static_cast<V>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      // at least 32 bits wide and unsigned, where a product cannot overflow
      using Wide = std::conditional_t<sizeof(V) == 8, std::uint64_t, std::uint32_t>;
      return static_cast<V>(static_cast<Wide>(a) * static_cast<Wide>(b));
    } else {
      return a * b;
    }
  }
};
// A NaN of either side stays, as in PyTorch.
struct Min {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      return a < b ? a : b;
    } else {
      return ((a < b) | (a != a)) ? a : b;
    }
  }
};
struct Max {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_integral_v<V>) {
      return a > b ? a : b;
    } else {
      return ((a > b) | (a != a)) ? a : b;
    }
  }
};
// For booleans, which are 0 or 1 once loaded.
struct Or {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a | b; }
};
struct And {
  static std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a & b; }
};

/// What a pass over a chunk reads and writes beside the partial results.
struct Pass {
  const void* left;   ///< the first source, in the first pass
  const void* right;  ///< the source that is added; null where there is only one
  void* out;          ///< in the last pass
  double divisor;     ///< in the last pass; 1: nothing is divided
};

template <class T, class Lanes>
typename Lanes::Value finished(typename Lanes::Value value, double divisor) {
  if constexpr (std::is_floating_point_v<typename Element<T>::Value>) {
    if (divisor != 1) value = value / Lanes::all(static_cast<typename Element<T>::Value>(divisor));
    if constexpr (Lanes::kWidth == 1 && sizeof(T) < sizeof(float)) {
      // as bits: from a comparison GCC 12 makes a branch that takes constants through the conversion
      const auto bits = __builtin_bit_cast(std::uint32_t, value);
      return __builtin_bit_cast(float, pick_bits((bits & 0x7fffffffU) > 0x7f800000U, 0x7fc00000U, bits));
    } else {
      return value == value ? value : Lanes::all(static_cast<typename Element<T>::Value>(__builtin_nanf("")));
    }
  } else if constexpr (!std::is_same_v<T, Boolean>) {
    // narrow integers cannot hold every divisor
    using Wide = std::conditional_t<std::is_signed_v<typename Lanes::Value>, std::int64_t, std::uint64_t>;
    if (divisor != 1) {
      value = static_cast<typename Lanes::Value>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
    }
    return value;
  } else {
    return value;
  }
}

template <class T, class Op, class Lanes, bool kFirst, bool kLast, bool kOne, bool kDivides>
std::size_t run(const Pass& pass, typename Element<T>::Value* partial, std::size_t i, std::size_t count) {
  const auto* left = pass.left;
  const auto* right = pass.right;
  auto* out = pass.out;
  const double divisor = kDivides ? pass.divisor : 1;
  for (; i + Lanes::kWidth <= count; i += Lanes::kWidth) {
    auto value = kFirst ? Lanes::load(left, i) : Lanes::resume(partial + i);
    if constexpr (!kOne) value = Op::apply(value, Lanes::load(right, i));
    if constexpr (kLast) {
      Lanes::store(out, i, finished<T, Lanes>(value, divisor));
    } else {
      Lanes::suspend(partial + i, value);
    }
  }
  return i;
}

/// Not inline: GCC 12 would merge the passes of several sources, and leave the result scalar.
template <class T, class Op, bool kFirst, bool kLast, bool kOne = false, bool kDivides = false>
[[gnu::noinline]] void pass_over(const Pass& pass, typename Element<T>::Value* partial, std::size_t count) {
  const std::size_t done = run<T, Op, Several<T>, kFirst, kLast, kOne, kDivides>(pass, partial, 0, count);
  run<T, Op, Single<T>, kFirst, kLast, kOne, kDivides>(pass, partial, done, count);
}

template <class T, class Op, bool kFirst, bool kOne = false>
void last_pass(const Pass& pass, typename Element<T>::Value* partial, std::size_t count) {
  if (pass.divisor == 1) {
    pass_over<T, Op, kFirst, true, kOne, false>(pass, partial, count);
  } else {
    pass_over<T, Op, kFirst, true, kOne, true>(pass, partial, count);
  }
}

// Partial results that stay in the first-level cache while all sources are read.
constexpr std::size_t kPartialBytes = 4096;

template <class T, class Op>
void combine(void* out, const void* const* sources, std::size_t n, std::size_t count, double divisor) {
  using Value = typename Element<T>::Value;
  constexpr std::size_t kChunk = kPartialBytes / sizeof(Value);
  alignas(64) Value partial[kChunk];  // NOLINT(cppcoreguidelines-pro-type-member-init): written before it is read
  // fewer than three sources need no partial results, so they are one chunk
  const std::size_t chunk = n < 3 ? count : kChunk;
  for (std::size_t from = 0; from < count; from += chunk) {
    const std::size_t length = count - from < chunk ? count - from : chunk;
    const auto source = [&](std::size_t i) { return static_cast<const std::byte*>(sources[i]) + from * sizeof(T); };
    void* to = static_cast<std::byte*>(out) + from * sizeof(T);
    Pass pass{.left = source(0), .right = nullptr, .out = to, .divisor = divisor};
    if (n == 1) {
      last_pass<T, Op, true, true>(pass, partial, length);
      continue;
    }
    pass.right = source(1);
    if (n == 2) {
      last_pass<T, Op, true>(pass, partial, length);
      continue;
    }
    pass_over<T, Op, true, false>(pass, partial, length);
    for (std::size_t i = 2; i + 1 < n; ++i) {
      pass.right = source(i);
      pass_over<T, Op, false, false>(pass, partial, length);
    }
    pass.right = source(n - 1);
    last_pass<T, Op, false>(pass, partial, length);
  }
}

template <class T>
constexpr ReduceLoops loops_of() {
  return {.sum = &combine<T, Sum>, .product = &combine<T, Product>, .min = &combine<T, Min>, .max = &combine<T, Max>};
}

constexpr ReduceLoopsTable kLoops{
    .float32 = loops_of<float>(),
    .float64 = loops_of<double>(),
    .float16 = loops_of<Half>(),
    .bfloat16 = loops_of<BFloat16>(),
    .int8 = loops_of<std::int8_t>(),
    .int32 = loops_of<std::int32_t>(),
    .int64 = loops_of<std::int64_t>(),
    .uint8 = loops_of<std::uint8_t>(),
    .boolean = {.sum = &combine<Boolean, Or>,
                .product = &combine<Boolean, And>,
                .min = &combine<Boolean, And>,
                .max = &combine<Boolean, Or>},
};

}  // namespace
}  // namespace ddp::collectives
