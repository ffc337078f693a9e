// Inputs and results of collectives as plain numbers, for tests that compare a backend's memory with them. All values
// are whole numbers that every element type holds exactly, so no result depends on the order of additions.
#pragma once

#include <type_traits>

#include <ddp/operation.hpp>

namespace ddp::collectives::testing {

inline constexpr std::array kTypes{DType::float32,     DType::float64,   DType::float16,   DType::bfloat16,
                                   DType::int8,        DType::int32,     DType::int64,     DType::uint8,
                                   DType::boolean,     DType::uint32,    DType::uint64,    DType::float8_e4m3fn,
                                   DType::float8_e5m2, DType::complex64, DType::complex128};
inline constexpr std::array kReductions{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// What a type can be reduced by.
inline bool reducible(DType dtype, ReduceOp op) {
  if (component_of(dtype) != dtype) return op == ReduceOp::sum || op == ReduceOp::avg;
  return dtype != DType::boolean || op != ReduceOp::avg;
}
/// The @p number th reduction that the type has, round and round.
inline ReduceOp some_reduction(DType dtype, std::size_t number) {
  while (!reducible(dtype, kReductions[number % kReductions.size()])) ++number;
  return kReductions[number % kReductions.size()];
}

template <class Function>
auto with_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::float32: return function(float{});
    case DType::float64: return function(double{});
    case DType::int32: return function(std::int32_t{});
    case DType::int64: return function(std::int64_t{});
    case DType::int8: return function(std::int8_t{});
    case DType::uint32: return function(std::uint32_t{});
    case DType::uint64: return function(std::uint64_t{});
    case DType::float8_e4m3fn: return function(Float8E4M3{});
    case DType::float8_e5m2: return function(Float8E5M2{});
    case DType::float16: return function(Half{});
    case DType::bfloat16: return function(BFloat16{});
    default: return function(std::uint8_t{});
  }
}

inline void convert(float value, Half& to) { to = to_half(value); }
inline void convert(float value, BFloat16& to) { to = to_bfloat16(value); }
inline void convert(float value, Float8E4M3& to) { to = to_float8_e4m3(value); }
inline void convert(float value, Float8E5M2& to) { to = to_float8_e5m2(value); }

/// Of complex numbers the real part.
inline std::int64_t load_number(DType dtype, const std::byte* from) {
  return with_type(component_of(dtype), [&](auto value) {
    std::memcpy(&value, from, sizeof value);
    if constexpr (std::is_class_v<decltype(value)>) {
      return static_cast<std::int64_t>(to_float(value));
    } else {
      return static_cast<std::int64_t>(value);
    }
  });
}

/// Integers wrap. The imaginary part is the negative of the real one.
inline void store_number(DType dtype, std::byte* to, std::int64_t number) {
  const DType component = component_of(dtype);
  with_type(component, [&](auto value) {
    if constexpr (std::is_class_v<decltype(value)>) {
      convert(static_cast<float>(number), value);
    } else {
      value = static_cast<decltype(value)>(number);
    }
    std::memcpy(to, &value, sizeof value);
    return 0;
  });
  if (component != dtype) store_number(component, to + size_of(component), -number);
}

/// What a collective of all ranks is called with.
struct Call {
  OperationKind kind = OperationKind::all_reduce;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;  ///< elements of a rank's part; of the whole tensor where there are no parts
  int root = 0;
  bool in_place = false;
  std::size_t shift = 0;  ///< elements by which the tensors are off alignment
  std::uint64_t seed = 0;
  double prescale = 1;  ///< or 0.5, of sums
};

inline bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

/// Inputs repeat themselves after so many elements, and so do results.
inline constexpr std::size_t kPeriod = 11;

/// Writes number(0), number(1), ... of a function with this period.
template <class Number>
void store_numbers(DType dtype, std::byte* to, std::size_t count, Number&& number) {
  const std::size_t width = size_of(dtype);
  std::size_t have = 0;
  for (; have < count && have < kPeriod; ++have) store_number(dtype, to + have * width, number(have));
  while (have < count) {
    const std::size_t more = std::min(have, count - have);  // have is a multiple of the period
    std::memcpy(to + have * width, to, more * width);
    have += more;
  }
}

/// Element @p index of @p rank's input.
inline std::int64_t input_number(const Call& call, int size, int rank, std::size_t index) {
  const auto mixed = static_cast<std::int64_t>((index * 3 + static_cast<std::size_t>(rank) * 5 + call.seed) % kPeriod);
  // whole numbers up to 8 are all that float8_e5m2 holds
  const bool eight_bits = call.dtype == DType::float8_e4m3fn || call.dtype == DType::float8_e5m2;
  std::int64_t number = mixed - 5;
  if (eight_bits) number = mixed % 3 - 1;
  if (call.dtype == DType::uint64) number = mixed;  // results are computed in a signed type
  if (call.dtype == DType::boolean) {
    number = mixed < 3 ? 0 : 1;
  } else if (call.prescale != 1) {
    number = mixed % (eight_bits ? 2 : 5) * 2;  // exact also when it is halved
  } else if (reduces(call.kind) && call.op == ReduceOp::avg) {
    number = mixed % (size_of(call.dtype) == 1 ? 2 : 5) * size;  // before or after the sum, dividing is exact
  } else if (reduces(call.kind) && call.op == ReduceOp::product) {
    number = mixed % 3 == 0 ? 2 : 1;
  }
  std::byte stored[16];
  store_number(call.dtype, stored, number);
  return load_number(call.dtype, stored);  // as the type holds it: -5 is 251 in uint8
}

inline std::int64_t reduced_number(const Call& call, int size, std::size_t index) {
  std::int64_t result = input_number(call, size, 0, index);
  for (int rank = 1; rank < size; ++rank) {
    const std::int64_t next = input_number(call, size, rank, index);
    const bool boolean = call.dtype == DType::boolean;
    switch (call.op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result = boolean ? (result | next) : result + next; break;
      case ReduceOp::min: result = next < result ? next : result; break;
      case ReduceOp::max: result = next > result ? next : result; break;
      case ReduceOp::product: result *= next; break;
    }
  }
  if (call.prescale != 1) return result / 2;
  return call.op == ReduceOp::avg ? result / size : result;
}

/// How many elements each rank gives to an all_gather_v: some none.
inline std::vector<std::size_t> part_counts(const Call& call, int size) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back((call.count + static_cast<std::size_t>(rank) * 3) % (call.count + 2));
  }
  return counts;
}

}  // namespace ddp::collectives::testing
