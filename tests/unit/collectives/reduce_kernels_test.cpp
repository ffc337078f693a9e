// Reductions on the host, compared with a plain implementation for every type and operation.
#include <bit>

#include <ddp/tensor_view.hpp>

#include "collectives/reduce_kernels.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives {
namespace {

__extension__ using Int128 = __int128;
__extension__ using UnsignedInt128 = unsigned __int128;
constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// How to make, compute with and compare a type's values: in a wide type, stored at the end.
template <class T>
struct Traits {
  using WideInteger = std::conditional_t<std::is_unsigned_v<T>, UnsignedInt128, Int128>;
  using Wide = std::conditional_t<std::is_integral_v<T>, WideInteger, double>;
  static Wide widen(T value) { return static_cast<Wide>(value); }
  static T narrow(Wide value) {
    if constexpr (std::is_integral_v<T>) {  // wrap-around is arithmetic modulo a power of two
      return static_cast<T>(static_cast<std::uint64_t>(value));
    } else {
      return static_cast<T>(value);
    }
  }
};
template <>
struct Traits<Half> {
  using Wide = double;
  static Wide widen(Half value) { return to_float(value); }
  static Half narrow(Wide value) { return to_half(static_cast<float>(value)); }
};
template <>
struct Traits<Float8E4M3> {
  using Wide = double;
  static Wide widen(Float8E4M3 value) { return to_float(value); }
  static Float8E4M3 narrow(Wide value) { return to_float8_e4m3(static_cast<float>(value)); }
};
template <>
struct Traits<Float8E5M2> {
  using Wide = double;
  static Wide widen(Float8E5M2 value) { return to_float(value); }
  static Float8E5M2 narrow(Wide value) { return to_float8_e5m2(static_cast<float>(value)); }
};
template <>
struct Traits<BFloat16> {
  using Wide = double;
  static Wide widen(BFloat16 value) { return to_float(value); }
  static BFloat16 narrow(Wide value) { return to_bfloat16(static_cast<float>(value)); }
};

/// float sums in double are exact here except for one rounding, which is float's: a double represents the sum and
/// product of two floats well enough that rounding twice equals rounding once (53 >= 2 * 24 + 2).
template <class T>
T expected(T a, T b, ReduceOp op) {
  using K = Traits<T>;
  const auto x = K::widen(a);
  const auto y = K::widen(b);
  if constexpr (!std::is_integral_v<T>) {
    if (op == ReduceOp::min || op == ReduceOp::max) {
      if (std::isnan(x) || std::isnan(y)) return K::narrow(std::numeric_limits<double>::quiet_NaN());
    }
  }
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return K::narrow(x + y);
    case ReduceOp::min: return K::narrow(y < x ? y : x);
    case ReduceOp::max: return K::narrow(x < y ? y : x);
    case ReduceOp::product: return K::narrow(x * y);
  }
  return a;
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return a == b;
  } else {
    const double x = Traits<T>::widen(a);
    const double y = Traits<T>::widen(b);
    return (std::isnan(x) && std::isnan(y)) || x == y;
  }
}

template <class T>
T random_value(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else if constexpr (std::is_class_v<T>) {
    return T{static_cast<decltype(T::bits)>(random())};  // infinities and NaN among them
  } else if (random() % 16 == 0) {
    constexpr T kOdd[] = {std::numeric_limits<T>::quiet_NaN(),
                          std::numeric_limits<T>::infinity(),
                          -std::numeric_limits<T>::infinity(),
                          T{0},
                          -T{0},
                          std::numeric_limits<T>::max()};
    return kOdd[random() % std::size(kOdd)];
  } else {
    return std::uniform_real_distribution<T>(-1000, 1000)(random);
  }
}

template <class T>
std::vector<T> random_values(std::size_t count, std::mt19937_64& random) {
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(random_value<T>(random));
  return values;
}

/// Two values at a time; avg is not divided.
void combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, std::size_t count) {
  Reduction(dtype, op, 1).combine(out, std::array{a, b}, count);
}

template <class T>
class ReduceKernels : public ::testing::Test {};
using Types = ::testing::Types<float, double, Half, BFloat16, Float8E4M3, Float8E5M2, std::int8_t, std::int32_t,
                               std::int64_t, std::uint8_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(ReduceKernels, Types);

TYPED_TEST(ReduceKernels, AreThePlainOperation) {
  std::mt19937_64 random{1};  // NOLINT(cert-msc51-cpp): the same values in every run
  for (const ReduceOp op : kOps) {
    for (const std::size_t count : {0, 1, 7, 4099}) {
      const auto a = random_values<TypeParam>(count, random);
      const auto b = random_values<TypeParam>(count, random);
      std::vector<TypeParam> out(count + 1, TypeParam{});
      combine(DTypeOf<TypeParam>::value, op, out.data(), a.data(), b.data(), count);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same(out[i], expected(a[i], b[i], op)))
            << to_string(op) << " at " << i << ": " << static_cast<double>(Traits<TypeParam>::widen(a[i])) << ", "
            << static_cast<double>(Traits<TypeParam>::widen(b[i]));
      }
      EXPECT_TRUE(same(out[count], TypeParam{})) << "nothing is written behind the end";
    }
  }
}

TYPED_TEST(ReduceKernels, MayWriteIntoEitherInput) {
  std::mt19937_64 random{2};  // NOLINT(cert-msc51-cpp)
  const auto a = random_values<TypeParam>(1000, random);
  const auto b = random_values<TypeParam>(1000, random);
  for (const ReduceOp op : kOps) {
    const auto kernel = [op](void* out, const void* x, const void* y, std::size_t count) {
      combine(DTypeOf<TypeParam>::value, op, out, x, y, count);
    };
    std::vector<TypeParam> apart(a.size());
    kernel(apart.data(), a.data(), b.data(), a.size());
    auto into_a = a;
    kernel(into_a.data(), into_a.data(), b.data(), a.size());
    auto into_b = b;
    kernel(into_b.data(), a.data(), into_b.data(), a.size());
    auto both = a;
    kernel(both.data(), both.data(), both.data(), a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_TRUE(same(into_a[i], apart[i])) << to_string(op);
      ASSERT_TRUE(same(into_b[i], apart[i])) << to_string(op);
      ASSERT_TRUE(same(both[i], expected(a[i], a[i], op))) << to_string(op);
    }
  }
}

TYPED_TEST(ReduceKernels, DivideTruncatesIntegersAndRoundsFloats) {
  std::mt19937_64 random{3};  // NOLINT(cert-msc51-cpp)
  const auto values = random_values<TypeParam>(1000, random);
  for (const int divisor : {1, 2, 3, 7, 1000, 100'000}) {
    auto quotients = values;
    divide(quotients.data(), DTypeOf<TypeParam>::value, quotients.size(), divisor);
    std::vector<TypeParam> apart(values.size());
    divide_into(apart.data(), values.data(), DTypeOf<TypeParam>::value, values.size(), divisor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto wide = Traits<TypeParam>::widen(values[i]) / divisor;  // integers: __int128 truncates toward zero
      ASSERT_TRUE(same(quotients[i], Traits<TypeParam>::narrow(wide))) << i << " by " << divisor;
      ASSERT_TRUE(same(apart[i], quotients[i]));
    }
  }
}

TEST(ReduceKernelsOfIntegers, WrapAround) {
  const auto apply = []<class T>(ReduceOp op, T a, T b) {
    T out{};
    combine(DTypeOf<T>::value, op, &out, &a, &b, 1);
    return out;
  };
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(apply(ReduceOp::sum, kMax, std::int64_t{1}), kMin);
  EXPECT_EQ(apply(ReduceOp::product, kMin, std::int64_t{-1}), kMin);
  EXPECT_EQ(apply(ReduceOp::sum, std::int8_t{127}, std::int8_t{1}), -128);
  EXPECT_EQ(apply(ReduceOp::product, std::int8_t{-128}, std::int8_t{-128}), 0);
  EXPECT_EQ(apply(ReduceOp::sum, std::uint8_t{255}, std::uint8_t{255}), 254);
  EXPECT_EQ(apply(ReduceOp::product, std::int32_t{65'536}, std::int32_t{65'536}), 0);
  EXPECT_EQ(apply(ReduceOp::min, std::int8_t{-1}, std::int8_t{1}), -1);
  EXPECT_EQ(apply(ReduceOp::max, std::uint8_t{200}, std::uint8_t{100}), 200);
}

TEST(ReduceKernelsOfIntegers, DivideTowardZero) {
  std::vector<std::int32_t> values{-7, -1, 0, 1, 7, std::numeric_limits<std::int32_t>::min()};
  divide(values.data(), DType::int32, values.size(), 2);
  EXPECT_EQ(values, (std::vector<std::int32_t>{-3, 0, 0, 0, 3, -1'073'741'824}));
  std::vector<std::int8_t> narrow{-128, 127};
  divide(narrow.data(), DType::int8, narrow.size(), 300);  // more ranks than an int8 can hold
  EXPECT_EQ(narrow, (std::vector<std::int8_t>{0, 0}));
}

TEST(ReduceKernelsOfFloats, NanWinsFromEitherSide) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    const std::vector<float> a{kNan, 1, kNan};
    const std::vector<float> b{1, kNan, kNan};
    std::vector<float> out(3);
    combine(DType::float32, op, out.data(), a.data(), b.data(), 3);
    for (const float value : out) EXPECT_TRUE(std::isnan(value)) << to_string(op);
  }
}

TEST(ReduceKernelsOfComplexNumbers, AddAndDivideBothParts) {
  const std::vector<double> a{1, -2, 3, 4};
  const std::vector<double> b{5, 6, -7, 9};
  std::vector<double> out(5, 77);
  Reduction(DType::complex128, ReduceOp::avg, 2).combine(out.data(), std::array<const void*, 2>{a.data(), b.data()}, 2);
  EXPECT_EQ(out, (std::vector<double>{3, 2, -2, 6.5, 77}));
  const std::vector<float> one{1, 2, 3, 4};
  std::vector<float> copy(4);
  Reduction(DType::complex64, ReduceOp::sum, 1).combine(copy.data(), std::array<const void*, 1>{one.data()}, 2);
  EXPECT_EQ(copy, one);
}

/// 448 + 448 would be out of range before the division.
TEST(ReduceKernelsOfFloat8, AveragesOfTheLargestStayThere) {
  const Float8E4M3 largest = to_float8_e4m3(448);
  Float8E4M3 out{};
  Reduction(DType::float8_e4m3fn, ReduceOp::avg, 2)
      .combine(&out, std::array<const void*, 2>{&largest, &largest}, 1, Stage::first);
  EXPECT_EQ(to_float(out), 448);
  combine(DType::float8_e4m3fn, ReduceOp::sum, &out, &largest, &largest, 1);
  EXPECT_EQ(to_float(out), 448) << "it stays at the largest number";
}

TEST(ReduceKernelsOfBooleans, AreOrAndAnd) {
  const std::vector<std::uint8_t> a{0, 0, 1, 1, 2, 255};
  const std::vector<std::uint8_t> b{0, 1, 0, 1, 0, 128};
  const auto apply = [&](ReduceOp op) {
    std::vector<std::uint8_t> out(a.size(), 77);
    combine(DType::boolean, op, out.data(), a.data(), b.data(), a.size());
    return out;
  };
  const std::vector<std::uint8_t> either{0, 1, 1, 1, 1, 1};
  const std::vector<std::uint8_t> both{0, 0, 0, 1, 0, 1};
  EXPECT_EQ(apply(ReduceOp::sum), either);
  EXPECT_EQ(apply(ReduceOp::max), either);
  EXPECT_EQ(apply(ReduceOp::product), both);
  EXPECT_EQ(apply(ReduceOp::min), both);
}

TEST(ReduceKernelsOfHalf, SumsAreRoundedOnceFromFloat) {
  const Half a = to_half(2048);
  const Half b = to_half(1);  // 2049 lies between two values of float16 and goes to the even one
  Half out{};
  combine(DType::float16, ReduceOp::sum, &out, &a, &b, 1);
  EXPECT_EQ(to_float(out), 2048);
  const Half large = to_half(65504);
  combine(DType::float16, ReduceOp::sum, &out, &large, &large, 1);
  EXPECT_TRUE(std::isinf(to_float(out)));
}

}  // namespace

}  // namespace ddp::collectives

namespace ddp {

// Conversions of float16 and bfloat16 over all their values: every bit pattern survives the way to float and back, and
// every float goes to the nearest value, ties to even.

namespace {

struct HalfFormat {
  using Type = Half;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static Type convert(float value) { return to_half(value); }
};
struct BFloat16Format {
  using Type = BFloat16;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
  static Type convert(float value) { return to_bfloat16(value); }
};

/// The value of a bit pattern, by the definition of IEEE 754 and in double, which represents all exactly.
template <class Format>
double meaning(std::uint16_t bits) {
  constexpr int kExponentBits = 15 - Format::kMantissaBits;
  constexpr int kSpecial = (1 << kExponentBits) - 1;
  const int exponent = (bits >> Format::kMantissaBits) & kSpecial;
  const int mantissa = bits & ((1 << Format::kMantissaBits) - 1);
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  if (exponent == kSpecial) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = std::ldexp(mantissa, -Format::kMantissaBits) + (exponent == 0 ? 0 : 1);
  return sign * std::ldexp(fraction, std::max(exponent, 1) - Format::kBias);
}

/// The nearest value's bits, by searching the table of all values. Positive values are ordered like their bits; after
/// the largest finite value comes 2^(emax+1), from which on everything is infinity.
template <class Format>
std::uint16_t nearest(float value) {
  static const std::vector<double> positive = [] {
    std::vector<double> values;
    std::uint16_t bits = 0;
    for (; std::isfinite(meaning<Format>(bits)); ++bits) values.push_back(meaning<Format>(bits));
    values.push_back(2 * meaning<Format>(static_cast<std::uint16_t>(bits - (1 << Format::kMantissaBits))));
    return values;
  }();
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  const auto above = std::lower_bound(positive.begin(), positive.end(), magnitude);
  if (above == positive.end()) return static_cast<std::uint16_t>(sign | (positive.size() - 1));
  auto index = static_cast<std::size_t>(above - positive.begin());
  if (index > 0) {
    const double up = *above - magnitude;
    const double down = magnitude - positive[index - 1];
    if (down < up || (down == up && (index - 1) % 2 == 0)) --index;
  }
  return static_cast<std::uint16_t>(sign | index);
}

template <class Format>
struct HalfTypes : testing::Test {
  using Type = typename Format::Type;
  static void expect_nearest(float value) {
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(meaning<Format>(Format::convert(value).bits)));
    } else {
      ASSERT_EQ(Format::convert(value).bits, nearest<Format>(value))
          << "of " << value << ", bits " << std::bit_cast<std::uint32_t>(value);
    }
  }
};
using Formats = testing::Types<HalfFormat, BFloat16Format>;
TYPED_TEST_SUITE(HalfTypes, Formats);

TYPED_TEST(HalfTypes, EveryBitPatternMeansWhatItShould) {
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
    const typename TypeParam::Type value{static_cast<std::uint16_t>(bits)};
    const double expected = meaning<TypeParam>(value.bits);
    const float actual = to_float(value);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(actual), expected) << bits;
      ASSERT_EQ(std::signbit(actual), (bits & 0x8000U) != 0) << bits;
    }
  }
}

TYPED_TEST(HalfTypes, EveryBitPatternSurvivesTheRoundTrip) {
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
    const typename TypeParam::Type value{static_cast<std::uint16_t>(bits)};
    const auto again = TypeParam::convert(to_float(value));
    if (std::isnan(meaning<TypeParam>(value.bits))) {  // a NaN stays one, with its sign
      ASSERT_TRUE(std::isnan(meaning<TypeParam>(again.bits))) << bits;
      ASSERT_EQ(again.bits & 0x8000U, value.bits & 0x8000U) << bits;
    } else {
      ASSERT_EQ(again.bits, value.bits);
    }
  }
}

TYPED_TEST(HalfTypes, HalfwayGoesToEvenAndItsNeighboursToTheirSide) {
  for (unsigned bits = 0; std::isfinite(meaning<TypeParam>(static_cast<std::uint16_t>(bits + 1))); ++bits) {
    const double low = meaning<TypeParam>(static_cast<std::uint16_t>(bits));
    const double high = meaning<TypeParam>(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    if (static_cast<double>(middle) != (low + high) / 2) continue;  // no float lies there
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(TypeParam::convert(middle).bits, even) << bits;
    ASSERT_EQ(TypeParam::convert(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(TypeParam::convert(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1);
    ASSERT_EQ(TypeParam::convert(-middle).bits, even | 0x8000U) << bits;
  }
}

TYPED_TEST(HalfTypes, OverflowStartsHalfwayAboveTheLargestValue) {
  std::uint16_t infinity = 0;
  while (std::isfinite(meaning<TypeParam>(infinity))) ++infinity;
  const double largest = meaning<TypeParam>(static_cast<std::uint16_t>(infinity - 1));
  const double step = largest - meaning<TypeParam>(static_cast<std::uint16_t>(infinity - 2));
  const auto limit = static_cast<float>(largest + step / 2);
  EXPECT_EQ(TypeParam::convert(limit).bits, infinity);
  EXPECT_EQ(TypeParam::convert(std::nextafter(limit, 0.0F)).bits, infinity - 1);
  EXPECT_EQ(TypeParam::convert(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(TypeParam::convert(-std::numeric_limits<float>::infinity()).bits, infinity | 0x8000U);
}

TYPED_TEST(HalfTypes, RandomFloatsGoToTheNearest) {
  std::mt19937 random{7};  // NOLINT(cert-msc51-cpp): the same values in every run
  for (int i = 0; i < ::ddp::test::cases(300'000); ++i) {
    this->expect_nearest(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    if (this->HasFatalFailure()) return;
  }
  // and where the format has most of its values
  std::uniform_real_distribution<float> ordinary(-70'000, 70'000);
  std::uniform_real_distribution<float> small(-1e-4F, 1e-4F);
  for (int i = 0; i < ::ddp::test::cases(100'000); ++i) {
    this->expect_nearest(ordinary(random));
    this->expect_nearest(small(random));
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(HalfTypes, EveryNanStaysNan) {
  // including those whose set bits are all cut off
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7f80ffffU, 0x7fc00000U, 0x7fffffffU, 0xffffffffU}) {
    const auto converted = TypeParam::convert(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(meaning<TypeParam>(converted.bits))) << bits;
  }
}

#ifdef __FLT16_MAX__
TEST(HalfAgainstTheCompiler, ConversionsAgree) {
  __extension__ using Native = _Float16;
  const auto native_bits = [](float value) {
    const auto converted = static_cast<Native>(value);
    std::uint16_t bits = 0;
    std::memcpy(&bits, &converted, sizeof bits);
    return bits;
  };
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    Native native{};
    std::memcpy(&native, &stored, sizeof stored);
    const float expected = static_cast<float>(native);
    if (std::isnan(expected)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(to_float(Half{stored})), std::bit_cast<std::uint32_t>(expected)) << bits;
  }
  // a step of 4099 through all floats reaches every exponent with many mantissas
  for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_half(value).bits, native_bits(value)) << value;
  }
}
#endif

}  // namespace

}  // namespace ddp
