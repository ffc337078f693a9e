// Quantization and the selection of the largest elements, against what they mean, in double precision.
#include "kernels/compression.hpp"

#include <ddp/error.hpp>

#include "unit/kernels/place.hpp"

namespace ddp::kernels {
namespace {

using Compression = KernelsTest;
INSTANTIATE_TEST_SUITE_P(Places, Compression, testing::Values("host", "device"),
                         [](const auto& place) { return place.param; });

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> gaussian(std::size_t count, unsigned int seed, float deviation = 1) {
  std::mt19937 random{seed};
  std::normal_distribution<float> normal{0, deviation};
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class Quantized {
 public:
  Quantized(Place& place, const std::vector<float>& values, std::size_t row, Quantization kind)
      : place_(place), rows_{values.size(), row}, kind_(kind) {
    bytes_ = place.put(std::vector<std::uint8_t>(values.size() + 1, 0xee));
    scales_ = place.put(std::vector<RowScale>(rows_.number()));
    auto* workspace = place.put(std::vector<std::uint32_t>(2 * rows_.number(), 12345));
    quantize(place.executor(), place.put(values), rows_, kind, bytes_, scales_, workspace);
    EXPECT_EQ(place.get(bytes_, values.size() + 1).back(), 0xee);
  }
  std::vector<float> back() const {
    float* to = place_.put(std::vector<float>(rows_.count, 77));
    dequantize(place_.executor(), bytes_, scales_, {}, rows_, kind_, to);
    return place_.get(to, rows_.count);
  }
  std::vector<RowScale> scales() const { return place_.get(scales_, rows_.number()); }

 private:
  Place& place_;
  Rows rows_;
  Quantization kind_;
  std::uint8_t* bytes_;
  RowScale* scales_;
};

TEST_P(Compression, QuantizationErrsByAtMostHalfAStep) {
  struct Case {
    std::size_t count;
    std::size_t row;
    float deviation;
  };
  const std::vector<Case> cases{{1, 1, 1},
                                {1000, 1000, 1},
                                {1000, 5000, 1},
                                {513, 512, 1e-20F},
                                {5000, 512, 1e30F},
                                {2 * kRowChunk + 3, 2 * kRowChunk + 3, 1},
                                {3 * kRowChunk, kRowChunk + 1, 1}};
  for (const auto& [count, row, deviation] : cases) {
    const std::vector<float> values = gaussian(count, 3, deviation);
    for (const Quantization kind : {Quantization::affine, Quantization::symmetric}) {
      const Quantized quantized(place(), values, row, kind);
      const std::vector<float> back = quantized.back();
      const std::vector<RowScale> scales = quantized.scales();
      for (std::size_t first = 0; first < count; first += row) {
        const std::size_t end = std::min(count, first + row);
        const auto [low, high] = std::minmax_element(values.data() + first, values.data() + end);
        const double smallest = std::min<double>(*low, 0);
        const double largest = std::max<double>(*high, 0);
        const double step =
            kind == Quantization::affine ? (largest - smallest) / 255 : std::max(largest, -smallest) / 127;
        ASSERT_NEAR(scales[first / row].scale, step, step * 1e-6);
        // the affine zero point is rounded, which can cost half a step more at the ends
        const double allowed = kind == Quantization::affine ? 1.01 : 0.501;
        for (std::size_t i = first; i < end; ++i) {
          ASSERT_NEAR(back[i], values[i], allowed * step) << count << " " << row << " " << i;
        }
      }
    }
  }
}

TEST_P(Compression, ZerosStayAndWhatIsNotFiniteIsSeen) {
  for (const Quantization kind : {Quantization::affine, Quantization::symmetric}) {
    EXPECT_THAT(Quantized(place(), {0, -0.0F, 0}, 3, kind).back(), testing::Each(0.0F));
    EXPECT_EQ(Quantized(place(), {5, 0, 7}, 3, kind).back()[1], 0.0F);
    EXPECT_EQ(Quantized(place(), {-5, 0, -7}, 3, kind).back()[1], 0.0F);
    // one row is lost, not its neighbours
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      const auto back = Quantized(place(), {1, bad, 1, 1, 1, 1}, 3, kind).back();
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(back[i])) << bad << " " << back[i];
      EXPECT_FALSE(std::isnan(back[3] + back[4] + back[5]));
    }
    // the difference of both is infinite in float32
    EXPECT_NEAR(Quantized(place(), {3e38F, -3e38F}, 2, kind).back()[0] / 3e38F, 1, 0.01);
    EXPECT_TRUE(Quantized(place(), {}, 4, kind).back().empty());
  }
  HostExecutor host;
  EXPECT_THROW(quantize(host, nullptr, {1, 0}, Quantization::affine, nullptr, nullptr, nullptr), Error);
}

/// One behind the other, as ranks send them.
TEST_P(Compression, QuantizedMessagesAreAveragedInTheirOrder) {
  for (const auto& [count, row] : {std::pair<std::size_t, std::size_t>{5, 5}, {1301, 512}, {kRowChunk + 9, 20000}}) {
    const Rows rows{count, row};
    const std::size_t scales_bytes = rows.number() * sizeof(RowScale);
    const std::size_t stride = scales_bytes + (count + 3) / 4 * 4;
    auto* const all = place().put(std::vector<std::uint8_t>(3 * stride));
    std::vector<std::vector<float>> each;
    for (std::size_t i = 0; i < 3; ++i) {
      auto* const scales = reinterpret_cast<RowScale*>(all + i * stride);
      auto* const bytes = all + i * stride + scales_bytes;
      auto* const workspace = place().put(std::vector<std::uint32_t>(2 * rows.number()));
      const float* const values = place().put(gaussian(count, static_cast<unsigned>(i)));
      quantize(place().executor(), values, rows, Quantization::symmetric, bytes, scales, workspace);
      float* const to = place().put(std::vector<float>(count));
      dequantize(place().executor(), bytes, scales, {}, rows, Quantization::symmetric, to);
      each.push_back(place().get(to, count));
    }
    float* const mean = place().put(std::vector<float>(count, 77));
    dequantize(place().executor(), all + scales_bytes, reinterpret_cast<const RowScale*>(all),
               {.number = 3, .stride_bytes = stride}, rows, Quantization::symmetric, mean, 3);
    const std::vector<float> got = place().get(mean, count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], (each[0][i] + each[1][i] + each[2][i]) / 3);
  }
}

struct Chosen {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

Chosen largest_of(Place& place, const std::vector<float>& values, std::size_t wanted) {
  auto* indices = place.put(std::vector<std::uint32_t>(wanted + 1, 4711));
  float* chosen = place.put(std::vector<float>(wanted + 1, 4711));
  auto* workspace = place.put(std::vector<SelectionWorkspace>(1));
  select_largest(place.executor(), place.put(values), values.size(), wanted, indices, chosen, workspace);
  Chosen result{place.get(indices, wanted + 1), place.get(chosen, wanted + 1)};
  EXPECT_EQ(result.indices.back(), 4711);
  EXPECT_EQ(result.values.back(), 4711);
  result.indices.pop_back();
  result.values.pop_back();
  return result;
}

std::vector<std::uint32_t> expected_largest(const std::vector<float>& values, std::size_t wanted) {
  // NaN counts as larger than infinity
  std::vector<std::pair<double, std::uint32_t>> order;  // the first of equal ones is the one with the lower index
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const double magnitude = std::isinf(values[i]) ? 1e300 : std::fabs(static_cast<double>(values[i]));
    order.emplace_back(std::isnan(values[i]) ? -HUGE_VAL : -magnitude, i);
  }
  if (wanted < order.size()) {
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end());
  }
  std::vector<std::uint32_t> chosen;
  for (std::size_t i = 0; i < wanted; ++i) chosen.push_back(order[i].second);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

TEST_P(Compression, LargestMagnitudesByPosition) {
  std::vector<std::vector<float>> inputs{gaussian(1, 1), gaussian(255, 2), gaussian(70000, 3, 1e-30F),
                                         std::vector<float>(3000, -2), gaussian(300, 4)};
  for (std::size_t i = 0; i < 300; ++i) inputs[4][i] = std::round(inputs[4][i]);  // many of equal magnitude
  inputs.push_back({0, -0.0F, kNan, 1, -kInfinity, 1e-45F, -1e-45F, -1});
  inputs.push_back(gaussian(300000, 5));  // more than one tile in each of the most blocks
  for (const auto& values : inputs) {
    std::vector<std::size_t> numbers{0, 1, values.size() / 100, values.size() / 2, values.size()};
    if (values.size() > 10000) numbers = {values.size() / 100};
    for (const std::size_t wanted : numbers) {
      const Chosen got = largest_of(place(), values, wanted);
      ASSERT_EQ(got.indices, expected_largest(values, wanted)) << values.size() << " " << wanted;
      for (std::size_t i = 0; i < wanted; ++i) {
        const float value = values[got.indices[i]];
        ASSERT_TRUE(got.values[i] == value || std::isnan(value)) << i;
      }
    }
  }
  HostExecutor host;
  EXPECT_THROW(select_largest(host, nullptr, 1, 2, nullptr, nullptr, nullptr), Error);
}

TEST_P(Compression, ScatterAddsAtThePositions) {
  float* to = place().put(std::vector<float>{1, 2, 3, 4});
  scatter_add(place().executor(), place().put(std::vector<std::uint32_t>{3, 0}),
              place().put(std::vector<float>{0.5F, 8}), 2, to);
  scatter_add(place().executor(), nullptr, nullptr, 0, to);
  EXPECT_EQ(place().get(to, 4), (std::vector<float>{9, 2, 3, 4.5F}));
  const auto* const middle = place().put(std::vector<std::uint32_t>{2, 1});
  scatter_add(place().executor(), middle, place().put(std::vector<float>{1, 2}), 2, to, 3);
  EXPECT_EQ(place().get(to, 4), (std::vector<float>{9, 2 + 2 / 3.0F, 3 + 1 / 3.0F, 4.5F}));
  scatter_zero(place().executor(), middle, 2, to);
  EXPECT_EQ(place().get(to, 4), (std::vector<float>{9, 0, 0, 4.5F}));
}

}  // namespace
}  // namespace ddp::kernels
