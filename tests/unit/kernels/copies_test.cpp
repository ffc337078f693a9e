// Flattening, scaling, casting and filling, on the processor and through CUDA's driver API: the same tests.
#include "kernels/copies.hpp"

#include <ddp/error.hpp>

#include "kernels/arguments.hpp"
#include "kernels/number_formats.hpp"
#include "unit/kernels/place.hpp"

namespace ddp::kernels {
namespace {

using Copies = KernelsTest;
INSTANTIATE_TEST_SUITE_P(Places, Copies, testing::Values("host", "device"),
                         [](const auto& place) { return place.param; });

/// A number in a format, by way of double: how much one step there is, relative and at least.
struct Precision {
  Format format;
  double relative;  ///< half a unit in the last place
  double smallest;  ///< half the smallest subnormal number
};
constexpr std::array kPrecisions{
    Precision{Format::float32, 0x1p-24, 0x1p-150},   Precision{Format::float16, 0x1p-11, 0x1p-25},
    Precision{Format::bfloat16, 0x1p-8, 0x1p-134},   Precision{Format::float8_e4m3, 0x1p-4, 0x1p-10},
    Precision{Format::float8_e5m2, 0x1p-3, 0x1p-17},
};

double widened(Format format, const std::byte* stored) {
  const auto read = [&](auto value) {
    std::memcpy(&value, stored, sizeof(value));
    return value;
  };
  switch (format) {
    case Format::float32: return read(float{});
    case Format::float64: return read(double{});
    case Format::float16: return float16_to_float(read(std::uint16_t{}));
    case Format::bfloat16: return bfloat16_to_float(read(std::uint16_t{}));
    case Format::float8_e4m3: return float8_to_float<E4M3>(read(std::uint8_t{}));
    case Format::float8_e5m2: return float8_to_float<E5M2>(read(std::uint8_t{}));
    case Format::raw: break;
  }
  return read(std::uint8_t{});
}

/// 160 tensors with the sizes of a model: some empty, some of one element, some of several blocks.
std::vector<std::size_t> sizes_of_160_tensors() {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 160; ++i) sizes.push_back(i % 8 == 0 ? 0 : (i * 37) % 97);
  sizes[5] = kChunkElements<false>;
  sizes[77] = 3 * kChunkElements<false> + 1;
  sizes[159] = 1;
  return sizes;
}

TEST_P(Copies, FlattenScalesAndCastsAndUnflattenRestores) {
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  std::vector<Part> parts;
  std::vector<float> all;
  for (const std::size_t size : sizes_of_160_tensors()) {
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    all.insert(all.end(), values.begin(), values.end());
    parts.push_back({place().put(values), size});
  }
  const double scale = 1.0 / 3;
  for (const Precision& to : kPrecisions) {
    SCOPED_TRACE(to_string(to.format));
    const std::size_t bytes = size_of(to.format);
    std::byte* flat = place().put(std::vector<std::byte>(all.size() * bytes));
    flatten(place().executor(), parts, Format::float32, flat, to.format, scale);
    const std::vector<std::byte> got = place().get(flat, all.size() * bytes);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double exact = static_cast<double>(all[i]) * scale;
      // the scale and the product are rounded to float32 before the cast
      const double tolerance = std::max(std::fabs(exact) * (to.relative + 0x1p-22), to.smallest);
      ASSERT_NEAR(widened(to.format, got.data() + i * bytes), exact, tolerance) << i;
    }
    std::vector<Part> back;
    for (const Part& part : parts) back.push_back({place().put(std::vector<float>(part.count, 99)), part.count});
    unflatten(place().executor(), flat, to.format, back, Format::float32, 2);
    std::size_t first = 0;
    for (const Part& part : back) {
      const auto values = place().get(static_cast<const float*>(part.data), part.count);
      for (std::size_t i = 0; i < part.count; ++i) {
        ASSERT_EQ(values[i], 2 * widened(to.format, got.data() + (first + i) * bytes)) << first + i;
      }
      first += part.count;
    }
  }
}

TEST_P(Copies, TensorsAtAnyElementOfAnyLengthAndNothingBeside) {
  for (const Precision& to : kPrecisions) {
    const std::size_t bytes = size_of(to.format);
    for (std::size_t offset = 0; offset < 5; ++offset) {
      for (const std::size_t count : {0U, 1U, 3U, 4U, 5U, 31U, 1027U}) {
        const std::vector<float> values(count + offset, 1.5F);
        const std::byte untouched{0xa5};
        const auto* from = place().put(values);
        std::byte* to_memory = place().put(std::vector<std::byte>((count + 8) * bytes, untouched));
        const Piece piece{.from = from + offset, .to = to_memory + offset * bytes, .count = count};
        copy(place().executor(), {&piece, 1}, Format::float32, to.format);
        const auto got = place().get(to_memory, (count + 8) * bytes);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t element = i / bytes;
          if (element < offset || element >= offset + count) {
            ASSERT_EQ(got[i], untouched) << to_string(to.format) << " " << offset << " " << count;
          } else if (i % bytes == 0) {
            ASSERT_EQ(widened(to.format, got.data() + i), 1.5) << to_string(to.format) << " " << offset << " " << count;
          }
        }
      }
    }
  }
}

TEST_P(Copies, EqualFormatsAndRawBytes) {
  const std::vector<double> wide{1.0, -0x1p-1040, 1e300, 0x1.fffffffffffffp0};
  double* to_wide = place().put(std::vector<double>(4));
  const Piece doubles{place().put(wide), to_wide, 4};
  copy(place().executor(), {&doubles, 1}, Format::float64, Format::float64, 1.0 / 3);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(place().get(to_wide, 4)[i], wide[i] * (1.0 / 3));

  std::vector<std::uint16_t> halves(1U << 16U);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  for (const Format format : {Format::float16, Format::bfloat16}) {
    std::uint16_t* to = place().put(std::vector<std::uint16_t>(halves.size()));
    const Piece piece{place().put(halves), to, halves.size()};
    copy(place().executor(), {&piece, 1}, format, format);
    const auto got = place().get(to, halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const auto* stored = reinterpret_cast<const std::byte*>(&halves[i]);
      if (std::isnan(widened(format, stored))) {
        ASSERT_TRUE(std::isnan(widened(format, reinterpret_cast<const std::byte*>(&got[i])))) << i;
      } else {
        ASSERT_EQ(got[i], halves[i]);
      }
    }
  }

  std::vector<std::uint8_t> bytes(3 * kChunkElements<true> + 5);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  std::uint8_t* to_bytes = place().put(std::vector<std::uint8_t>(bytes.size()));
  const Piece raw{place().put(bytes), to_bytes, bytes.size()};
  copy(place().executor(), {&raw, 1}, Format::raw, Format::raw);
  EXPECT_EQ(place().get(to_bytes, bytes.size()), bytes);
}

TEST_P(Copies, OverflowIsVisibleAndNanStays) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0x1.8p16F, -infinity, std::numeric_limits<float>::quiet_NaN(), -0.0F};
  std::uint16_t* to = place().put(std::vector<std::uint16_t>(4));
  const Piece piece{place().put(values), to, 4};
  copy(place().executor(), {&piece, 1}, Format::float32, Format::float16);
  auto got = place().get(to, 4);
  EXPECT_EQ(got[0], 0x7c00);
  EXPECT_EQ(got[1], 0xfc00);
  EXPECT_TRUE(std::isnan(float16_to_float(got[2])));
  EXPECT_EQ(got[3], 0x8000);
  // scaled before it is cast: what fits then does not overflow
  copy(place().executor(), {&piece, 1}, Format::float32, Format::float16, 0.5);
  EXPECT_EQ(float16_to_float(place().get(to, 4)[0]), 0x1.8p15F);
}

TEST_P(Copies, FillEveryWidth) {
  const auto check = [&](auto element) {
    using T = decltype(element);
    std::vector<Part> parts;
    const std::vector<std::size_t> sizes{0, 1, 7, kChunkElements<false> + 1};
    for (const std::size_t size : sizes) parts.push_back({place().put(std::vector<T>(size + 1)), size});
    fill(place().executor(), parts, std::as_bytes(std::span{&element, 1}));
    for (const Part& part : parts) {
      auto got = place().get(static_cast<const T*>(part.data), part.count + 1);
      EXPECT_EQ(got.back(), T{});
      got.pop_back();
      EXPECT_THAT(got, testing::Each(element));
    }
  };
  check(std::uint8_t{0x81});
  check(std::uint16_t{0x8123});
  check(1.5F);
  check(-0x1.23456789p-300);
}

/// Counts launches, and keeps their arguments.
class Counting final : public Executor {
 public:
  void launch(const Launch& launch) override {
    launches.push_back(*static_cast<const PieceArguments*>(launch.argument));
    blocks.push_back(launch.blocks);
  }
  std::vector<PieceArguments> launches;
  std::vector<std::uint32_t> blocks;
};

TEST(CopyLaunches, OneFor160TensorsAndChunksOfMore) {
  std::vector<float> memory(16);
  const auto blocks_of = [&](std::size_t pieces) {
    Counting counting;
    copy(counting, std::vector<Piece>(pieces, {memory.data(), memory.data() + 8, 4}), Format::float32, Format::float32);
    return counting.blocks;
  };
  EXPECT_THAT(blocks_of(0), testing::IsEmpty());
  EXPECT_THAT(blocks_of(160), testing::ElementsAre(160));
  EXPECT_THAT(blocks_of(kMaxPieces), testing::ElementsAre(kMaxPieces));
  EXPECT_THAT(blocks_of(2 * kMaxPieces + 1), testing::ElementsAre(kMaxPieces, kMaxPieces, 1));
}

TEST(CopyLaunches, MoreElementsThanACountHolds) {
  // never touched: only what would be launched is looked at
  auto* const memory = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);
  Counting counting;
  const std::size_t count = (std::size_t{1} << 32U) + 5;
  const Piece piece{.from = memory, .to = memory, .count = count};
  copy(counting, {&piece, 1}, Format::float32, Format::bfloat16);
  std::size_t done = 0;
  for (const PieceArguments& launch : counting.launches) {
    for (std::uint32_t i = 0; i < launch.pieces; ++i) {
      EXPECT_EQ(launch.from[i], memory + 4 * done);
      EXPECT_EQ(launch.to[i], memory + 2 * done);
      done += launch.count[i];
    }
  }
  EXPECT_EQ(done, count);
}

TEST_P(Copies, SumsAndFiniteNumbersOfManyTensors) {
  std::vector<Piece> pieces;
  std::vector<Piece> checked;
  std::vector<float> all;
  for (const std::size_t size : sizes_of_160_tensors()) {
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(all.size() + (&value - values.data())) / 7;
    all.insert(all.end(), values.begin(), values.end());
    const float* const from = place().put(values);
    pieces.push_back({.from = from, .to = place().put(std::vector<float>(size + 1, 1)), .count = size});
    if (size > 2) values[2] = size % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
    checked.push_back({.from = place().put(values), .to = place().put(std::vector<float>(size + 1, 1)), .count = size});
  }
  add(place().executor(), pieces);
  copy_finite(place().executor(), checked);
  const float* wanted = all.data();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t size = pieces[i].count;
    const auto sums = place().get(static_cast<const float*>(pieces[i].to), size + 1);
    const auto finite = place().get(static_cast<const float*>(checked[i].to), size + 1);
    for (std::size_t k = 0; k < size; ++k) {
      ASSERT_EQ(sums[k], 1 + wanted[k]) << i;
      ASSERT_EQ(finite[k], k == 2 ? 0 : wanted[k]) << i;
    }
    EXPECT_EQ(sums[size] + finite[size], 2) << "beside it";
    wanted += size;
  }
}

TEST(CopyLaunches, WhatCannotBeIsRefused) {
  HostExecutor executor;
  std::vector<float> memory(8);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  const auto why = [&](Piece piece, Format from, Format to, double scale) -> std::string {
    try {
      copy(executor, {&piece, 1}, from, to, scale);
    } catch (const Error& error) {
      return error.what();
    }
    return "not refused";
  };
  EXPECT_THAT(why({bytes, bytes, 1}, Format::float16, Format::bfloat16, 1), testing::HasSubstr("float16 to bfloat16"));
  EXPECT_THAT(why({bytes, bytes, 1}, Format::raw, Format::raw, 2), testing::HasSubstr("scale"));
  EXPECT_THAT(why({bytes + 1, bytes, 1}, Format::float32, Format::float16, 1), testing::HasSubstr("not aligned"));
  EXPECT_THAT(why({bytes, bytes + 1, 1}, Format::float32, Format::float16, 1), testing::HasSubstr("not aligned"));
  const Part part{bytes, 1};
  EXPECT_THROW(fill(executor, {&part, 1}, std::vector<std::byte>(3)), Error);
}

}  // namespace
}  // namespace ddp::kernels
