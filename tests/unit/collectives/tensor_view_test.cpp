// Views of tensors: sizes, bad shapes, slices and their text.
#include <ddp/tensor_view.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::error_of;
using testing::ElementsAre;
using testing::ElementsAreArray;
using Shape = std::vector<std::int64_t>;

TEST(TensorView, CountsElementsAndBytes) {
  std::vector<double> memory(24);
  const TensorView view{memory.data(), DType::float64, {2, 3, 4}};
  EXPECT_EQ(view.numel(), 24U);
  EXPECT_EQ(view.size_bytes(), 192U);
  EXPECT_THAT(view.shape(), ElementsAre(2, 3, 4));
  EXPECT_EQ(view.description(), "float64[2, 3, 4]");
  const TensorView scalar{memory.data(), DType::float64, {}};
  EXPECT_EQ(scalar.numel(), 1U);
  EXPECT_EQ(scalar.description(), "float64[]");
}

TEST(TensorView, ShapesOfAnyLengthAreKept) {
  float memory = 0;
  for (std::size_t dimensions = 0; dimensions <= 20; ++dimensions) {
    Shape shape(dimensions, 1);
    const TensorView view{&memory, DType::float32, shape};
    shape.assign(shape.size(), 7);
    const TensorView copy = view;
    EXPECT_THAT(copy.shape(), ElementsAreArray(Shape(dimensions, 1)));
  }
}

TEST(TensorView, MayBeEmpty) {
  EXPECT_EQ(TensorView{}.numel(), 0U);
  EXPECT_EQ(TensorView(nullptr, DType::float32, {0}).numel(), 0U);
  EXPECT_EQ(TensorView(nullptr, DType::float32, {3, 0, 5}).size_bytes(), 0U);
}

TEST(TensorView, ShapesWithoutASizeAreRefused) {
  float memory = 0;
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Shape& shape :
       {Shape{-1}, Shape{2, -3}, Shape{-2, -2}, Shape{kHuge, kHuge}, Shape{1LL << 32, 1LL << 32}}) {
    const auto error = error_of([&] { TensorView(&memory, DType::float32, shape); });
    ASSERT_TRUE(error) << testing::PrintToString(shape);
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(TensorView, BytesThatDoNotFitAreRefused) {
  double memory = 0;
  // 2^61 elements can be counted, but not their 2^64 bytes
  const auto error = error_of([&] { TensorView(&memory, DType::float64, {1LL << 61}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_EQ(TensorView(&memory, DType::uint8, {1LL << 61}).size_bytes(), std::size_t{1} << 61U);
}

TEST(TensorView, NullIsRefusedWhereThereAreElements) {
  const auto error = error_of([] { TensorView(nullptr, DType::float32, {2}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
}

TEST(TensorView, SlicesAreOneDimensionalAndPointIntoTheSameMemory) {
  std::vector<std::int32_t> memory(12);
  const TensorView view{memory.data(), DType::int32, {3, 4}, {.type = DeviceType::cpu, .index = 0}};
  const TensorView part = view.slice(5, 4);
  EXPECT_EQ(part.data(), memory.data() + 5);
  EXPECT_THAT(part.shape(), ElementsAre(4));
  EXPECT_EQ(part.dtype(), DType::int32);
  EXPECT_EQ(view.slice(0, 12).numel(), 12U);
  EXPECT_EQ(view.slice(12, 0).numel(), 0U);
  EXPECT_EQ(TensorView{}.slice(0, 0).numel(), 0U);
  const TensorView elsewhere{memory.data(), DType::int32, {4}, {.type = DeviceType::cuda, .index = 3}};
  EXPECT_EQ(elsewhere.slice(1, 1).device(), (Device{.type = DeviceType::cuda, .index = 3}));
}

TEST(TensorView, SlicesOutsideAreRefused) {
  std::vector<float> memory(10);
  const TensorView view{memory};
  constexpr auto kHuge = std::numeric_limits<std::size_t>::max();
  for (const auto& [first, count] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 11}, {10, 1}, {11, 0}, {5, 6}, {1, kHuge}, {kHuge, 1}}) {
    const auto error = error_of([&, from = first, size = count] { static_cast<void>(view.slice(from, size)); });
    ASSERT_TRUE(error) << first << ", " << count;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(TensorView, IsMadeOfContiguousRanges) {
  std::vector<Half> halves(3);
  EXPECT_EQ(TensorView{halves}.dtype(), DType::float16);
  const std::vector<std::int64_t> constant{1, 2};
  const TensorView view{std::span{constant}};
  EXPECT_EQ(view.dtype(), DType::int64);
  EXPECT_EQ(view.data(), constant.data());
  std::array<bool, 4> flags{};
  EXPECT_EQ(TensorView{std::span{flags}}.description(), "bool[4]");
}

TEST(DTypes, HaveSizesAndNames) {
  for (const auto& [dtype, size, name] :
       std::vector<std::tuple<DType, std::size_t, std::string>>{{DType::float32, 4, "float32"},
                                                                {DType::float64, 8, "float64"},
                                                                {DType::float16, 2, "float16"},
                                                                {DType::bfloat16, 2, "bfloat16"},
                                                                {DType::int8, 1, "int8"},
                                                                {DType::int32, 4, "int32"},
                                                                {DType::int64, 8, "int64"},
                                                                {DType::uint8, 1, "uint8"},
                                                                {DType::boolean, 1, "bool"},
                                                                {DType::uint32, 4, "uint32"},
                                                                {DType::uint64, 8, "uint64"},
                                                                {DType::float8_e4m3fn, 1, "float8_e4m3fn"},
                                                                {DType::float8_e5m2, 1, "float8_e5m2"},
                                                                {DType::complex64, 8, "complex64"},
                                                                {DType::complex128, 16, "complex128"}}) {
    EXPECT_EQ(size_of(dtype), size) << name;
    EXPECT_EQ(to_string(dtype), name);
  }
  EXPECT_EQ(component_of(DType::complex64), DType::float32);
  EXPECT_EQ(component_of(DType::complex128), DType::float64);
  EXPECT_EQ(component_of(DType::int8), DType::int8);
}

}  // namespace
}  // namespace ddp
