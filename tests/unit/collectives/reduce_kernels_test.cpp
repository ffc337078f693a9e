// The arithmetic of reductions on the host, against the same thing written out plainly for every type and operation.
#include "collectives/reduce_kernels.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace ddp::collectives {
namespace {

__extension__ using Int128 = __int128;
__extension__ using UnsignedInt128 = unsigned __int128;
constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// How a type's values are made, computed with and compared. Everything is done in a wide type and stored at the end.
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

/// float sums in double are exact here but for one rounding, which is that of float: a double holds the sum and the
/// product of two floats well enough that rounding twice is rounding once (53 >= 2 * 24 + 2).
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

/// 448 + 448 would be out of range before it is divided.
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
