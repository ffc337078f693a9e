// Exact sums and means, against integers of 128 bits.
#include "kernels/copies.hpp"

#include "kernels/arguments.hpp"
#include "kernels/element.hpp"
#include "unit/kernels/place.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::kernels {
namespace {

using ExactSums = KernelsTest;
INSTANTIATE_TEST_SUITE_P(Places, ExactSums, testing::Values("host", "device"),
                         [](const auto& place) { return place.param; });

__extension__ using Wide = __int128;

/// In units of 2^-64.
Wide units_of(double value) {
  const double whole = std::trunc(value * 0x1p20);
  const double rest = (value - whole / 0x1p20) * 0x1p64;
  return static_cast<Wide>(whole) * (Wide{1} << 44U) + static_cast<Wide>(std::trunc(rest + std::copysign(0.5, value)));
}

template <class Element>
typename Element::Stored rounded(double value) {
  return Element::store(static_cast<typename Element::Value>(value));
}
template <class Element>
double value_of(typename Element::Stored stored) {
  return static_cast<double>(Element::load(stored));
}

/// Of all magnitudes that count, and some beyond.
template <class Element>
std::vector<typename Element::Stored> numbers(std::size_t count, unsigned int seed) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-70, 23);
  std::vector<typename Element::Stored> values(count);
  for (auto& value : values) {
    // what is rounded up to 2^23 would be too large
    do value = rounded<Element>(std::ldexp(mantissa(random), exponent(random)));
    while (!(std::abs(value_of<Element>(value)) < 0x1p23));
  }
  return values;
}

/// Tensors of several lengths, each with its sums behind those of the one before, and their words before and behind.
template <class T>
struct Sums {
  Sums(Place& where, std::vector<std::size_t> lengths) : place(where), counts(std::move(lengths)) {
    std::size_t words = 1;
    for (const std::size_t count : counts) words += 2 * count + 1;
    memory.assign(words, 0);
    memory.back() = 4711;
    sums = place.put(memory);
  }
  std::vector<ExactTensor> tensors(const std::vector<std::vector<T>>& values) {
    std::vector<ExactTensor> tensors;
    std::int64_t* next = sums;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tensors.push_back(
          {.values = place.put(values[i]), .count = counts[i], .sums = next, .broken = next + 2 * counts[i]});
      next += 2 * counts[i] + 1;
    }
    return tensors;
  }
  Place& place;
  std::vector<std::size_t> counts;
  std::vector<std::int64_t> memory;
  std::int64_t* sums;
};

/// Lengths around those of blocks, and more tensors than fit into a launch.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> lengths{1, 0, 255, 4095, 4096, 4097, 9000};
  while (lengths.size() < kMaxSums + 10) lengths.push_back(lengths.size() % 7);
  return lengths;
}

template <class Element>
void check_means(Place& place, Format format) {
  using T = typename Element::Stored;
  Sums<T> exact(place, lengths());
  std::vector<std::vector<Wide>> wanted;
  for (const std::size_t count : exact.counts) wanted.emplace_back(count);
  constexpr int kTerms = 5;
  std::vector<std::vector<T>> values(exact.counts.size());
  for (int term = 0; term < kTerms; ++term) {
    for (std::size_t i = 0; i < exact.counts.size(); ++i) {
      values[i] = numbers<Element>(exact.counts[i], static_cast<unsigned>(100 * term) + static_cast<unsigned>(i));
      for (std::size_t k = 0; k < values[i].size(); ++k) wanted[i][k] += units_of(value_of<Element>(values[i][k]));
    }
    if (term == 1) {
      values[2][7] = rounded<Element>(std::nan(""));
      values[5][4096] = rounded<Element>(std::numeric_limits<double>::infinity());
    }
    if (term == 2 && format != Format::float16) values[2][9] = rounded<Element>(0x1p23);
    add_exactly(place.executor(), exact.tensors(values), format);
  }
  const auto* const terms = place.put(std::vector<std::int64_t>{kTerms});
  const auto tensors = exact.tensors(values);
  exact_means(place.executor(), tensors, format, terms);
  EXPECT_EQ(place.get(exact.sums, exact.memory.size()).back(), 4711);
  EXPECT_EQ(place.get(tensors[2].broken, 1)[0], format != Format::float16 ? 2 : 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<T> means = place.get(static_cast<const T*>(tensors[i].values), tensors[i].count);
    for (std::size_t k = 0; k < means.size(); ++k) {
      if (i == 2 || i == 5) {
        ASSERT_TRUE(std::isnan(value_of<Element>(means[k]))) << i << ", " << k;
        continue;
      }
      const T mean = rounded<Element>(static_cast<double>(wanted[i][k]) / 0x1p64 / kTerms);
      ASSERT_EQ(std::memcmp(&means[k], &mean, sizeof(T)), 0) << i << ", " << k << ": " << value_of<Element>(means[k]);
    }
  }
}

TEST_P(ExactSums, AreThoseOfIntegers) {
  check_means<Float32Element>(place(), Format::float32);
  check_means<Float64Element>(place(), Format::float64);
  check_means<Float16Element>(place(), Format::float16);
  check_means<BFloat16Element>(place(), Format::bfloat16);
}

/// Sums whose words were added on several ranks: of any sign, and with carries from low to high.
TEST_P(ExactSums, AreRoundedOnce) {
  std::mt19937_64 random{1};
  std::vector<std::int64_t> sums;
  const auto add = [&](std::int64_t high, std::int64_t low) { sums.insert(sums.end(), {high, low}); };
  for (unsigned int bits = 0; bits < 62; ++bits) {
    for (int i = 0; i < 20; ++i) {
      const auto any = [&](unsigned int length) { return static_cast<std::int64_t>(random()) >> (63 - length); };
      add(any(bits), any(static_cast<unsigned int>(random() % 63)));
    }
    // halfway between two doubles, and a unit of the lowest word beside it
    const std::int64_t odd = (std::int64_t{1} << bits) + (bits > 52 ? std::int64_t{1} << (bits - 53) : 0);
    for (const std::int64_t beside : {-1, 0, 1}) {
      add(odd, beside);
      add(-odd, beside);
      add(3 * (std::int64_t{1} << (bits / 2)), (std::int64_t{1} << 62U) + beside);
    }
  }
  add(0, 0);
  add(-1, std::int64_t{1} << 44U);
  add(0, std::numeric_limits<std::int64_t>::min());
  const std::size_t count = sums.size() / 2;
  std::vector<double> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    wanted.push_back(static_cast<double>(static_cast<Wide>(sums[2 * i]) * (Wide{1} << 44U) + sums[2 * i + 1]) / 0x1p64 /
                     3);
  }
  const auto* const words = place().put(std::vector<std::int64_t>{0, 3});
  const ExactTensor tensor{.values = place().put(std::vector<double>(count, 7)),
                           .count = count,
                           .sums = place().put(sums),
                           .broken = const_cast<std::int64_t*>(words)};
  exact_means(place().executor(), {&tensor, 1}, Format::float64, words + 1);
  EXPECT_EQ(place().get(static_cast<const double*>(tensor.values), count), wanted);
}

TEST_P(ExactSums, AreOfFloatingPointNumbersOnly) {
  const Error error = test::thrown_by([&] { add_exactly(place().executor(), {}, Format::float8_e4m3); });
  EXPECT_THAT(error.cause(), testing::HasSubstr("float8_e4m3fn has no sums"));
}

}  // namespace
}  // namespace ddp::kernels
