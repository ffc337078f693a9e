// Conversions of float16 and bfloat16, against all of their values: every bit pattern survives the way to float and
// back, and every float goes to the nearest value, ties to even.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <ddp/tensor_view.hpp>

#include "support/sanitized.hpp"

namespace ddp {
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

/// What a bit pattern means, by the definition of IEEE 754 and in double, where all values are exact.
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

/// The nearest value's bits, found by searching the table of all values. Positive values are ordered like their bits;
/// the one after the largest finite value is 2^(emax+1), from which on everything is infinity.
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
class HalfTypes : public testing::Test {
 protected:
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
  // among them those whose set bits are all cut off
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
  // a step of 4099 through all floats meets every exponent with many mantissas
  for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(to_half(value).bits, native_bits(value)) << value;
  }
}
#endif

}  // namespace
}  // namespace ddp
