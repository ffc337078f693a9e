// Inputs and results of collectives as plain numbers, for tests that compare a backend's memory with them. All values
// are whole numbers that every element type holds exactly, so no result depends on the order of additions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ddp/operation.hpp>

namespace ddp::collectives::testing {

template <class Function>
auto with_type(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::float32: return function(float{});
    case DType::float64: return function(double{});
    case DType::int32: return function(std::int32_t{});
    case DType::int64: return function(std::int64_t{});
    case DType::int8: return function(std::int8_t{});
    default: return function(std::uint8_t{});
  }
}

inline std::int64_t load_number(DType dtype, const std::byte* from) {
  if (dtype == DType::float16 || dtype == DType::bfloat16) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    return static_cast<std::int64_t>(dtype == DType::float16 ? to_float(Half{bits}) : to_float(BFloat16{bits}));
  }
  return with_type(dtype, [&](auto value) {
    std::memcpy(&value, from, sizeof value);
    return static_cast<std::int64_t>(value);
  });
}

/// Integers wrap.
inline void store_number(DType dtype, std::byte* to, std::int64_t number) {
  if (dtype == DType::float16 || dtype == DType::bfloat16) {
    const auto value = static_cast<float>(number);
    const std::uint16_t bits = dtype == DType::float16 ? to_half(value).bits : to_bfloat16(value).bits;
    std::memcpy(to, &bits, sizeof bits);
    return;
  }
  with_type(dtype, [&](auto value) {
    value = static_cast<decltype(value)>(number);
    std::memcpy(to, &value, sizeof value);
    return 0;
  });
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
  std::int64_t number = mixed - 5;
  if (call.dtype == DType::boolean) {
    number = mixed < 3 ? 0 : 1;
  } else if (reduces(call.kind) && call.op == ReduceOp::avg) {
    number = mixed % 5 * size;  // before or after the sum, dividing is exact
  } else if (reduces(call.kind) && call.op == ReduceOp::product) {
    number = mixed % 3 == 0 ? 2 : 1;
  }
  std::byte stored[8];
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
