#include "arithmetic.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace fake_nccl {
namespace {

/// Floating point of 8 or 16 bits.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;  ///< false: the largest exponent has numbers, and all bits set are NaN

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t mantissa_mask() const { return (1U << mantissa_bits) - 1; }
  std::uint32_t exponent_mask() const { return (1U << exponent_bits) - 1; }
  int sign_shift() const { return exponent_bits + mantissa_bits; }

  float decode(std::uint32_t bits) const {
    const std::uint32_t exponent = bits >> mantissa_bits & exponent_mask();
    const std::uint32_t mantissa = bits & mantissa_mask();
    const float sign = (bits >> sign_shift() & 1) != 0 ? -1.0F : 1.0F;
    if (exponent == exponent_mask() && infinity) {
      return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    if (exponent == exponent_mask() && mantissa == mantissa_mask()) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias() - mantissa_bits);
    const auto whole = static_cast<float>(mantissa + (1U << mantissa_bits));
    return sign * std::ldexp(whole, static_cast<int>(exponent) - bias() - mantissa_bits);
  }

  /// To the nearest, ties to even; too large ones of 8 bits become the largest (as CUDA's saturating conversions).
  std::uint32_t encode(float value) const {
    const std::uint32_t sign = std::signbit(value) ? 1U << sign_shift() : 0;
    const std::uint32_t top = exponent_mask() << mantissa_bits;
    const std::uint32_t largest = infinity ? top - 1 : (top | mantissa_mask()) - 1;
    if (std::isnan(value)) return infinity ? top | (1U << (mantissa_bits - 1)) : top | mantissa_mask();
    const bool saturates = sign_shift() < 8;
    const std::uint32_t beyond = saturates ? largest : top;
    if (std::isinf(value)) return sign | beyond;
    const double magnitude = std::abs(static_cast<double>(value));
    int exponent = magnitude == 0 ? 1 - bias() : std::ilogb(magnitude);
    exponent = std::max(exponent, 1 - bias());
    const double scaled = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
    // A carry out of the mantissa goes into the exponent by itself.
    const auto bits =
        static_cast<std::int64_t>(scaled) + (static_cast<std::int64_t>(exponent + bias() - 1) << mantissa_bits);
    return sign | (bits > static_cast<std::int64_t>(largest) ? beyond : static_cast<std::uint32_t>(bits));
  }
};

constexpr Format kHalf{5, 10, true};
constexpr Format kBfloat{8, 7, true};
constexpr Format kE4m3{4, 3, false};
constexpr Format kE5m2{5, 2, true};

/// How elements lie in memory, and what is computed in.
template <class Stored, class Computed = Stored>
struct Plain {
  using Value = Computed;
  static constexpr std::size_t kBytes = sizeof(Stored);
  static Value load(const void* from) {
    Stored value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(Value value, void* to) {
    const auto stored = static_cast<Stored>(value);
    std::memcpy(to, &stored, sizeof stored);
  }
};
template <class Bits, const Format& kFormat>
struct Small {
  using Value = float;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static Value load(const void* from) { return kFormat.decode(Plain<Bits>::load(from)); }
  static void store(Value value, void* to) { Plain<Bits>::store(static_cast<Bits>(kFormat.encode(value)), to); }
};

/// Calls @p use with the type's way of storing.
template <class Use>
auto with_type(ncclDataType_t type, Use&& use) {
  switch (type) {
    case ncclInt8: return use(Plain<std::int8_t>{});
    case ncclUint8: return use(Plain<std::uint8_t>{});
    case ncclInt32: return use(Plain<std::int32_t>{});
    case ncclUint32: return use(Plain<std::uint32_t>{});
    case ncclInt64: return use(Plain<std::int64_t>{});
    case ncclUint64: return use(Plain<std::uint64_t>{});
    case ncclFloat16: return use(Small<std::uint16_t, kHalf>{});
    case ncclFloat32: return use(Plain<float>{});
    case ncclFloat64: return use(Plain<double>{});
    case ncclBfloat16: return use(Small<std::uint16_t, kBfloat>{});
    case ncclFloat8e4m3: return use(Small<std::uint8_t, kE4m3>{});
    default: return use(Small<std::uint8_t, kE5m2>{});
  }
}

/// Integers wrap around.
template <class Value>
Value add(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class Value>
Value multiply(Value a, Value b) {
  if constexpr (std::is_integral_v<Value>) {
    return static_cast<Value>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}
template <class Value>
Value combine(Reduction::Kind kind, Value a, Value b) {
  switch (kind) {
    case Reduction::Kind::product: return multiply(a, b);
    case Reduction::Kind::maximum: return a < b ? b : a;
    case Reduction::Kind::minimum: return b < a ? b : a;
    default: return add(a, b);
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  constexpr int kFirstWithEightBits = version_code(2, 24, 3);
  if (static_cast<unsigned>(type) > ncclFloat8e5m2) return 0;
  if (type >= ncclFloat8e4m3 && settings().version < kFirstWithEightBits) return 0;
  return with_type(type, [](auto way) { return decltype(way)::kBytes; });
}

void scale(const Reduction& reduction, ncclDataType_t type, void* data, std::size_t count) {
  const void* scalar = reduction.scalar_in_memory ? reduction.scalar : &reduction.immediate;
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    const auto factor = Way::load(scalar);
    auto* at = static_cast<std::byte*>(data);
    for (std::size_t i = 0; i < count; ++i, at += Way::kBytes) Way::store(multiply(Way::load(at), factor), at);
  });
}

void reduce(const Reduction& reduction, ncclDataType_t type, const std::vector<const std::byte*>& inputs, void* output,
            std::size_t count) {
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    auto* to = static_cast<std::byte*>(output);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = i * Way::kBytes;
      auto value = Way::load(inputs[0] + at);
      for (std::size_t k = 1; k < inputs.size(); ++k) {
        value = combine(reduction.kind, value, Way::load(inputs[k] + at));
      }
      if (reduction.kind == Reduction::Kind::average) {
        using Value = typename Way::Value;
        value = static_cast<Value>(value / static_cast<Value>(inputs.size()));
      }
      Way::store(value, to + at);
    }
  });
}

double to_double(ncclDataType_t type, const void* element) {
  return with_type(type, [&](auto way) { return static_cast<double>(decltype(way)::load(element)); });
}

void from_double(ncclDataType_t type, double value, void* element) {
  with_type(type, [&](auto way) {
    using Way = decltype(way);
    Way::store(static_cast<typename Way::Value>(value), element);
  });
}

}  // namespace fake_nccl
