// Combinations of many sources: every set of vector instructions gives the bits of the portable loops, and these the
// bits that the description of Reduction promises.
#include "collectives/reduce_loops_table.hpp"

#include <bit>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives {
namespace {

constexpr std::array kDtypes{DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                             DType::int32,   DType::int64,   DType::uint8,   DType::boolean,  DType::complex64};
constexpr std::array kLoopOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
constexpr std::array kStages{Stage::whole, Stage::first, Stage::middle, Stage::last};

/// Random bytes; for floating-point types every fourth element is special: zeros, infinities, NaN, subnormal numbers,
/// the largest.
Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * size_of(dtype));
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  const auto put = [&]<class Bits>(std::initializer_list<Bits> magnitudes) {
    for (std::size_t i = 0; i < count; ++i) {
      if (random() % 4 != 0) continue;
      auto bits = std::data(magnitudes)[random() % magnitudes.size()];
      if (random() % 2 == 0) bits = static_cast<Bits>(bits | Bits{1} << (8 * sizeof(Bits) - 1));
      std::memcpy(bytes.data() + i * sizeof bits, &bits, sizeof bits);
    }
  };
  using U16 = std::uint16_t;
  switch (dtype) {
    case DType::float16: put({U16{0}, U16{1}, U16{0x3ff}, U16{0x7bff}, U16{0x7c00}, U16{0x7c01}, U16{0x7fff}}); break;
    case DType::bfloat16: put({U16{0}, U16{1}, U16{0x7f}, U16{0x7f7f}, U16{0x7f80}, U16{0x7f81}, U16{0x7fff}}); break;
    case DType::float32: put({0U, 1U, 0x7fffffU, 0x7f7fffffU, 0x7f800000U, 0x7f800001U, 0x7fffffffU}); break;
    case DType::float64:
      put({std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{0x7fefffffffffffff}, std::uint64_t{0x7ff0000000000000},
           std::uint64_t{0x7ff0000000000001}, std::uint64_t{0x7fffffffffffffff}});
      break;
    default: break;
  }
  return bytes;
}

Bytes combined(Simd simd, DType dtype, ReduceOp op, int ranks, const std::vector<const void*>& sources,
               std::size_t count, Stage stage = Stage::whole) {
  Bytes out(count * size_of(dtype) + 1, std::byte{0x5a});
  Reduction(dtype, op, ranks, reduce_loops(simd)).combine(out.data(), sources, count, stage);
  EXPECT_EQ(out.back(), std::byte{0x5a}) << "nothing is written behind the end";
  return out;
}

std::vector<Simd> vector_sets() {
  auto usable = usable_simd();
  usable.erase(usable.begin());
  return usable;
}

TEST(ReduceLoops, EverySetGivesTheBitsOfThePortableOne) {
  std::mt19937_64 random{1};  // NOLINT(cert-msc51-cpp): the same values in every run
  for (const DType dtype : kDtypes) {
    for (const std::size_t n : {1, 2, 3, 4, 9}) {
      for (const std::size_t count : {1, 7, 8, 17, 33, 257, 4099}) {
        std::vector<Bytes> memory;  // from its second byte on, so that nothing is aligned
        std::vector<const void*> sources;
        for (std::size_t i = 0; i < n; ++i) {
          memory.push_back(random_elements(dtype, count + 1, random));
          sources.push_back(memory.back().data() + 1);
        }
        for (const ReduceOp op : kLoopOps) {
          if (op == ReduceOp::avg && dtype == DType::boolean) continue;
          for (const Stage stage : kStages) {
            if (op != ReduceOp::avg && stage != Stage::whole) continue;
            const Bytes expected = combined(Simd::portable, dtype, op, 7, sources, count, stage);
            for (const Simd simd : vector_sets()) {
              ASSERT_EQ(combined(simd, dtype, op, 7, sources, count, stage), expected)
                  << to_string(simd) << ", " << to_string(dtype) << ", " << to_string(op) << ", " << n << " sources of "
                  << count;
            }
          }
        }
      }
    }
  }
}

/// All 65536 values.
template <class T>
std::vector<T> all_values() {
  std::vector<T> values;
  for (unsigned bits = 0; bits <= 0xffffU; ++bits) values.push_back(T{static_cast<std::uint16_t>(bits)});
  return values;
}
Half from_float(float value, Half) { return to_half(value); }
BFloat16 from_float(float value, BFloat16) { return to_bfloat16(value); }

template <class T>
class ReduceLoopsOfHalf : public ::testing::Test {};
using HalfTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(ReduceLoopsOfHalf, HalfTypes);

TYPED_TEST(ReduceLoopsOfHalf, ConvertEveryValueAndRoundToNearestEven) {
  const auto values = all_values<TypeParam>();
  constexpr DType kDtype = DTypeOf<TypeParam>::value;
  // partners that leave a value as it is, put it between two others, or make it overflow
  for (const float partner : {-0.0F, 1.0F, 0x1p-24F, 0x1.8p-12F, -2049.0F, 65504.0F, 0x1.fcp127F}) {
    const std::vector<TypeParam> partners(values.size(), from_float(partner, TypeParam{}));
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product}) {
      std::vector<TypeParam> expected;
      for (const TypeParam value : values) {
        const float a = to_float(value);
        const float b = to_float(partners[0]);
        float result = op == ReduceOp::product ? a * b : a + b;
        if (op == ReduceOp::avg) result /= 3;
        if (std::isnan(result)) result = std::bit_cast<float>(0x7fc00000U);
        expected.push_back(from_float(result, TypeParam{}));
      }
      for (const Simd simd : usable_simd()) {
        const Bytes out = combined(simd, kDtype, op, 3, {values.data(), partners.data()}, values.size());
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), values.size() * 2), 0)
            << to_string(simd) << ", " << to_string(op) << " with " << partner;
      }
    }
  }
}

TYPED_TEST(ReduceLoopsOfHalf, RoundOnceAfterAllSources) {
  const TypeParam large = from_float(DTypeOf<TypeParam>::value == DType::float16 ? 2048 : 256, TypeParam{});
  const TypeParam one = from_float(1, TypeParam{});  // half of large's last place: step by step, large would stay
  for (const Simd simd : usable_simd()) {
    TypeParam out{};
    const std::vector<const void*> sources{&large, &one, &one};
    Reduction(DTypeOf<TypeParam>::value, ReduceOp::sum, 3, reduce_loops(simd)).combine(&out, sources, 1);
    EXPECT_EQ(to_float(out), to_float(large) + 2);
  }
}

TYPED_TEST(ReduceLoopsOfHalf, AveragesDoNotOverflowInStages) {
  constexpr DType kDtype = DTypeOf<TypeParam>::value;
  // for bfloat16 a quarter of the largest value, since sums in float32 end where bfloat16 does
  const TypeParam largest{static_cast<std::uint16_t>(kDtype == DType::float16 ? 0x7bff : 0x7e7f)};
  const Reduction reduction(kDtype, ReduceOp::avg, 4);
  TypeParam whole{};
  reduction.combine(&whole, std::vector<const void*>{&largest, &largest, &largest, &largest}, 1);
  EXPECT_EQ(whole.bits, largest.bits);
  TypeParam three{};
  TypeParam one{};
  TypeParam two_steps{};
  reduction.combine(&three, std::vector<const void*>{&largest, &largest, &largest}, 1, Stage::first);
  reduction.combine(&one, std::vector<const void*>{&largest}, 1, Stage::first);
  EXPECT_EQ(to_float(one), to_float(largest) / 4);
  reduction.combine(&two_steps, std::vector<const void*>{&three, &one}, 1, Stage::last);
  EXPECT_EQ(two_steps.bits, largest.bits);
}

TEST(ReduceLoopsOfAverages, DivideTheWholeSumOnce) {
  const std::vector<float> a{1, -7};
  const std::vector<float> b{1, 4};
  const Reduction floats(DType::float32, ReduceOp::avg, 3);
  std::vector<float> partial(2);
  floats.combine(partial.data(), std::vector<const void*>{a.data(), b.data()}, 2, Stage::first);
  EXPECT_THAT(partial, ::testing::ElementsAre(2, -3));
  floats.combine(partial.data(), std::vector<const void*>{partial.data(), b.data()}, 2, Stage::middle);
  EXPECT_THAT(partial, ::testing::ElementsAre(3, 1));
  floats.combine(partial.data(), std::vector<const void*>{partial.data()}, 2, Stage::last);
  EXPECT_THAT(partial, ::testing::ElementsAre(1, 1.0F / 3));

  const std::vector<std::int32_t> c{-7};
  std::int32_t quotient = 0;
  Reduction(DType::int32, ReduceOp::avg, 2).combine(&quotient, std::vector<const void*>{c.data(), &quotient}, 1);
  EXPECT_EQ(quotient, -3);
}

TEST(ReduceLoops, CombineInTheGivenOrder) {
  const float large = 0x1p30F;
  const float minus = -0x1p30F;
  const float one = 1;
  for (const Simd simd : usable_simd()) {
    const Reduction reduction(DType::float32, ReduceOp::sum, 3, reduce_loops(simd));
    float out = 0;
    reduction.combine(&out, std::vector<const void*>{&large, &minus, &one}, 1);
    EXPECT_EQ(out, 1);
    reduction.combine(&out, std::vector<const void*>{&large, &one, &minus}, 1);
    EXPECT_EQ(out, 0);
  }
}

TEST(ReduceLoops, MayWriteIntoAnySource) {
  std::mt19937_64 random{2};            // NOLINT(cert-msc51-cpp)
  constexpr std::size_t kCount = 5000;  // several chunks of partial results
  for (const DType dtype : kDtypes) {
    for (const Simd simd : usable_simd()) {
      std::vector<Bytes> memory;
      for (int i = 0; i < 5; ++i) memory.push_back(random_elements(dtype, kCount, random));
      std::vector<const void*> sources;
      for (const auto& source : memory) sources.push_back(source.data());
      Bytes expected = combined(simd, dtype, ReduceOp::sum, 5, sources, kCount);
      expected.pop_back();
      for (std::size_t into = 0; into < memory.size(); ++into) {
        Bytes in_place = memory[into];
        sources[into] = in_place.data();
        Reduction(dtype, ReduceOp::sum, 5, reduce_loops(simd)).combine(in_place.data(), sources, kCount);
        sources[into] = memory[into].data();
        ASSERT_EQ(in_place, expected) << to_string(dtype) << ", source " << into;
      }
    }
  }
}

TEST(ReduceLoops, DoNotDependOnHowACallIsCut) {
  std::mt19937_64 random{3};  // NOLINT(cert-msc51-cpp)
  constexpr std::size_t kCount = 3000;
  for (const DType dtype : kDtypes) {
    const std::size_t width = size_of(dtype);
    std::vector<Bytes> memory;
    std::vector<const void*> sources;
    for (int i = 0; i < 3; ++i) memory.push_back(random_elements(dtype, kCount, random));
    for (const auto& source : memory) sources.push_back(source.data());
    const Reduction reduction(dtype, ReduceOp::sum, 3);
    Bytes whole(kCount * width);
    reduction.combine(whole.data(), sources, kCount);
    Bytes pieces(kCount * width);
    for (std::size_t from = 0; from < kCount;) {
      const std::size_t length = std::min(kCount - from, 1 + random() % 300);
      std::vector<const void*> parts;
      for (const auto& source : memory) parts.push_back(source.data() + from * width);
      reduction.combine(pieces.data() + from * width, parts, length);
      from += length;
    }
    ASSERT_EQ(pieces, whole) << to_string(dtype);
  }
}

#ifdef __SSE2__
TEST(ReduceLoops, KeepSubnormalNumbersInThreadsThatFlushThem) {
  const float tiny = 0x1p-140F;
  float out = 0;
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // FTZ and DAZ
  Reduction(DType::float32, ReduceOp::sum, 2).combine(&out, std::vector<const void*>{&tiny, &tiny}, 1);
  const unsigned int after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(out), std::bit_cast<std::uint32_t>(0x1p-139F));
  EXPECT_EQ(after & 0xffc0U, (before | 0x8040U) & 0xffc0U) << "the thread keeps its setting";
}
#endif

TEST(ReduceLoopsOfBooleans, OfOneSourceAreZeroOrOne) {
  const std::vector<std::uint8_t> values{0, 1, 2, 255};
  std::vector<std::uint8_t> out(4);
  Reduction(DType::boolean, ReduceOp::sum, 1).combine(out.data(), std::vector<const void*>{values.data()}, 4);
  EXPECT_THAT(out, ::testing::ElementsAre(0, 1, 1, 1));
}

TEST(ChooseSimd, TakesTheBestOrWhatIsNamed) {
  const auto choice = [](const char* word) {
    return choose_simd(base::Environment(std::map<std::string, std::string, std::less<>>{{"DDP_SIMD", word}}));
  };
  EXPECT_EQ(choice(""), usable_simd().back());
  EXPECT_EQ(choice("auto"), usable_simd().back());
  for (const Simd simd : usable_simd()) EXPECT_EQ(choice(std::string(to_string(simd)).c_str()), simd);
  for (const char* each : {"portable", "avx2", "avx512"}) EXPECT_LE(choice(each), usable_simd().back());
  EXPECT_THROW(choice("sse"), Error);
}

}  // namespace
}  // namespace ddp::collectives
