// Conversions against double precision: each result must be the nearest number of the format, of equally near ones the
// even one.
#include "kernels/number_formats.hpp"

namespace ddp::kernels {
namespace {

/// A format by its definition: sign, exponent, mantissa.
struct Definition {
  std::string name;
  int exponent_bits;
  int mantissa_bits;
  bool infinity;   ///< the largest exponent is infinity and NaN; else NaN is its last code only
  bool saturates;  ///< finite values that are too large become the largest number
  std::uint32_t (*narrow)(float);
  float (*widen)(std::uint32_t);

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t codes() const { return 1U << (bits() - 1); }  ///< without the sign
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint32_t infinity_code() const { return infinity ? ((1U << exponent_bits) - 1U) << mantissa_bits : codes() - 1; }
  double value(std::uint32_t code) const {
    const auto exponent = static_cast<int>(code >> mantissa_bits);
    const std::uint32_t mantissa = code & ((1U << mantissa_bits) - 1U);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1U << mantissa_bits), exponent - bias() - mantissa_bits);
  }
};

const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all{
      {"float16", 5, 10, true, false, [](float value) -> std::uint32_t { return float_to_float16(value); },
       [](std::uint32_t code) { return float16_to_float(static_cast<std::uint16_t>(code)); }},
      {"bfloat16", 8, 7, true, false, [](float value) -> std::uint32_t { return float_to_bfloat16(value); },
       [](std::uint32_t code) { return bfloat16_to_float(static_cast<std::uint16_t>(code)); }},
      {"float8_e4m3", 4, 3, false, true, [](float value) -> std::uint32_t { return float_to_float8<E4M3>(value); },
       [](std::uint32_t code) { return float8_to_float<E4M3>(static_cast<std::uint8_t>(code)); }},
      {"float8_e5m2", 5, 2, true, true, [](float value) -> std::uint32_t { return float_to_float8<E5M2>(value); },
       [](std::uint32_t code) { return float8_to_float<E5M2>(static_cast<std::uint8_t>(code)); }},
  };
  return all;
}

std::uint32_t code_of_nan_or(const Definition& format, std::uint32_t code) {
  const std::uint32_t magnitude = code & (format.codes() - 1);
  const bool nan = format.infinity ? magnitude > format.infinity_code() : magnitude == format.infinity_code();
  return nan ? ~0U : code;
}

/// The code that a finite magnitude rounds to, given the codes around it.
std::uint32_t nearest(const Definition& format, double magnitude) {
  std::uint32_t low = 0;
  const std::uint32_t end = format.infinity_code();  // as a number, the one after the largest
  if (magnitude >= format.value(end)) return format.saturates ? end - 1 : end;
  for (std::uint32_t high = end; high - low > 1;) {
    const std::uint32_t middle = (low + high) / 2;
    (format.value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - format.value(low);
  const double above = format.value(low + 1) - magnitude;
  std::uint32_t code = below < above || (below == above && low % 2 == 0) ? low : low + 1;
  if (code == end && format.saturates) code = end - 1;
  return code;
}

TEST(NumberFormats, EveryCodeIsWidenedExactlyAndComesBack) {
  for (const Definition& format : definitions()) {
    for (std::uint32_t code = 0; code < format.codes(); ++code) {
      for (const bool negative : {false, true}) {
        const std::uint32_t signed_code = code | (negative ? format.codes() : 0U);
        const float wide = format.widen(signed_code);
        if (code_of_nan_or(format, signed_code) == ~0U) {
          ASSERT_TRUE(std::isnan(wide)) << format.name << " " << signed_code;
          ASSERT_EQ(code_of_nan_or(format, format.narrow(wide)), ~0U) << format.name << " " << signed_code;
          continue;
        }
        const double magnitude = code == format.infinity_code() ? HUGE_VAL : format.value(code);
        ASSERT_EQ(static_cast<double>(wide), negative ? -magnitude : magnitude) << format.name << " " << signed_code;
        ASSERT_EQ(std::signbit(wide), negative) << format.name << " " << signed_code;
        ASSERT_EQ(format.narrow(wide), signed_code) << format.name;
      }
    }
  }
}

TEST(NumberFormats, NarrowingTakesTheNearestOfEqualsTheEven) {
  std::mt19937 random{1};
  for (const Definition& format : definitions()) {
    std::vector<float> values{0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                              std::numeric_limits<float>::max()};
    // around each number and each middle between two; exact in float32 for all but bfloat16's last ones
    for (std::uint32_t code = 0; code < format.infinity_code(); ++code) {
      const auto number = static_cast<float>(format.value(code));
      const auto middle = static_cast<float>((format.value(code) + format.value(code + 1)) / 2);
      for (const float value : {number, middle}) {
        values.push_back(value);
        values.push_back(std::nextafter(value, 0.0F));
        values.push_back(std::nextafter(value, HUGE_VALF));
      }
    }
    for (int i = 0; i < 20000; ++i) values.push_back(std::fabs(float_of(static_cast<std::uint32_t>(random()))));
    for (const float value : values) {
      if (!std::isfinite(value)) continue;
      const std::uint32_t expected = nearest(format, value);
      ASSERT_EQ(format.narrow(value), expected) << format.name << " " << value;
      ASSERT_EQ(format.narrow(-value), expected | format.codes()) << format.name << " " << -value;
    }
  }
}

TEST(NumberFormats, InfinityStaysVisible) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_float16(infinity), 0x7c00);
  EXPECT_EQ(float_to_float16(-infinity), 0xfc00);
  EXPECT_EQ(float_to_bfloat16(infinity), 0x7f80);
  EXPECT_EQ(float_to_float8<E5M2>(-infinity), 0xfc);
  EXPECT_TRUE(std::isnan(float8_to_float<E4M3>(float_to_float8<E4M3>(infinity))));
  // beyond the largest: infinity in IEEE's formats, the largest in those of 8 bits
  EXPECT_EQ(float_to_float16(65520.0F), 0x7c00);
  EXPECT_EQ(float8_to_float<E4M3>(float_to_float8<E4M3>(1e30F)), 448.0F);
  EXPECT_EQ(float8_to_float<E5M2>(float_to_float8<E5M2>(-1e30F)), -57344.0F);
}

}  // namespace
}  // namespace ddp::kernels
