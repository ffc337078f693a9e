// Products with thin factors and Gram-Schmidt, against what they mean, in double precision.
#include "kernels/low_rank.hpp"

#include "kernels/arguments.hpp"
#include "unit/kernels/place.hpp"

namespace ddp::kernels {
namespace {

using LowRank = KernelsTest;
INSTANTIATE_TEST_SUITE_P(Places, LowRank, testing::Values("host", "device"),
                         [](const auto& place) { return place.param; });

constexpr float kNotFinite = std::numeric_limits<float>::infinity();

std::vector<float> numbers(std::size_t count, unsigned int seed) {
  std::mt19937 random{seed};
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double dot(const std::vector<float>& values, std::size_t a, std::size_t b, std::size_t length) {
  double sum = 0;
  for (std::size_t i = 0; i < length; ++i) sum += double{values[a * length + i]} * double{values[b * length + i]};
  return sum;
}

struct Shape {
  std::size_t count;
  std::size_t columns;
  std::size_t rank;
};
/// Lengths around those of lanes, tiles and blocks; rows that end before their columns; one row, one column.
const std::vector<Shape> kMatrices{{1, 1, 1},     {15, 15, 1},       {16, 16, 2},    {35, 35, 1},
                                   {40, 1, 1},    {47, 12, 3},       {480, 20, 2},   {1000, 33, 4},
                                   {5000, 71, 5}, {9 * 300, 300, 9}, {2049, 683, 3}, {2999, 55, 17}};

/// A matrix and its factors, with something behind each that must stay.
struct Product {
  Product(Place& where, const Shape& shape)
      : place(where),
        columns(shape.columns),
        rank(shape.rank),
        elements(numbers(shape.count, 1)),
        matrix{.elements = put(elements), .count = shape.count, .columns = shape.columns},
        rows(matrix.rows()),
        left_values(numbers(rows * rank, 2)),
        right_values(numbers(columns * rank, 3)),
        left{.data = put(left_values), .length = rows, .columns = rank},
        right{.data = put(right_values), .length = columns, .columns = rank} {}

  float* put(std::vector<float> values) const {
    values.push_back(4711);
    return place.put(values);
  }
  std::vector<float> get(const float* from, std::size_t count) const {
    std::vector<float> values = place.get(from, count + 1);
    EXPECT_EQ(values.back(), 4711);
    values.pop_back();
    return values;
  }
  double element(std::size_t row, std::size_t column) const {
    const std::size_t i = row * columns + column;
    return i < elements.size() ? double{elements[i]} : 0.0;
  }

  Place& place;
  std::size_t columns;
  std::size_t rank;
  std::vector<float> elements;
  Matrix matrix;
  std::size_t rows;
  std::vector<float> left_values;
  std::vector<float> right_values;
  Factor left;
  Factor right;
};

TEST_P(LowRank, ProductsOfAMatrixWithItsFactors) {
  for (const Shape& shape : kMatrices) {
    SCOPED_TRACE(testing::Message() << shape.count << " elements in " << shape.columns << " columns");
    const Product product(place(), shape);
    multiply(place().executor(), product.matrix, product.right, product.left);
    const std::vector<float> left = product.get(product.left.data, product.left.count());
    for (std::size_t i = 0; i < left.size(); ++i) {
      double sum = 0;
      for (std::size_t column = 0; column < shape.columns; ++column) {
        const std::size_t k = i / product.rows;
        sum += product.element(i % product.rows, column) * double{product.right_values[k * shape.columns + column]};
      }
      ASSERT_NEAR(left[i], sum, 1e-6 * static_cast<double>(shape.columns + 10)) << i;
    }
    multiply_transposed(place().executor(), product.matrix, product.left, product.right);
    const std::vector<float> right = product.get(product.right.data, product.right.count());
    for (std::size_t i = 0; i < right.size(); ++i) {
      double sum = 0;
      double size = 1;
      for (std::size_t row = 0; row < product.rows; ++row) {
        const double term =
            product.element(row, i % shape.columns) * double{left[i / shape.columns * product.rows + row]};
        sum += term;
        size += std::fabs(term);
      }
      ASSERT_NEAR(right[i], sum, 1e-6 * size) << i;
    }
  }
}

TEST_P(LowRank, ExpansionsAndWhatTheyChange) {
  for (const Shape& shape : kMatrices) {
    SCOPED_TRACE(testing::Message() << shape.count << " elements in " << shape.columns << " columns");
    for (const std::uint32_t finite : {1U, 0U}) {
      const Product product(place(), shape);
      float* const difference = product.put(std::vector<float>(shape.count, 5));
      expand(place().executor(), product.left, product.right, 0.25F, product.matrix, difference,
             place().put(std::vector<std::uint32_t>{finite}));
      const std::vector<float> after = product.get(product.matrix.elements, shape.count);
      const std::vector<float> changed = product.get(difference, shape.count);
      for (std::size_t i = 0; i < shape.count; ++i) {
        double sum = 0;
        for (std::size_t k = 0; k < shape.rank; ++k) {
          sum += 0.25 * double{product.left_values[k * product.rows + i / shape.columns]} *
                 double{product.right_values[k * shape.columns + i % shape.columns]};
        }
        ASSERT_NEAR(after[i], sum, 1e-5) << i;
        ASSERT_EQ(changed[i], finite == 1 ? product.elements[i] - after[i] : 0) << i;
      }
    }
  }
  const Product product(place(), kMatrices.back());
  expand(place().executor(), product.left, product.right, 0, product.matrix, nullptr, nullptr);
  EXPECT_THAT(product.get(product.matrix.elements, product.matrix.count), testing::Each(0.0F));
}

TEST_P(LowRank, OrthogonalColumnsOfLengthOne) {
  std::vector<Factor> factors;
  for (std::size_t i = 0; i < kMaxFactors + 3; ++i) {  // more than fit into one launch
    const std::size_t length = 4 + 37 * i;
    factors.push_back(
        {.data = place().put(numbers(4 * length, static_cast<unsigned>(i))), .length = length, .columns = 4});
  }
  orthogonalize(place().executor(), factors, 0);
  for (const Factor& factor : factors) {
    const std::vector<float> got = place().get(factor.data, factor.count());
    for (std::size_t a = 0; a < factor.columns; ++a) {
      for (std::size_t b = 0; b <= a; ++b) ASSERT_NEAR(dot(got, a, b, factor.length), a == b ? 1 : 0, 1e-6);
    }
  }
}

/// The second column is the first, twice as long; the third is 0.
TEST_P(LowRank, ColumnsThatDependOnOthersVanish) {
  constexpr std::size_t kLength = 600;
  std::vector<float> values = numbers(kLength, 1);
  for (std::size_t i = 0; i < kLength; ++i) values.push_back(2 * values[i]);
  values.resize(3 * kLength);
  const Factor factor{.data = place().put(values), .length = kLength, .columns = 3};
  orthogonalize(place().executor(), {&factor, 1}, 0);
  const std::vector<float> got = place().get(factor.data, factor.count());
  const double length = std::sqrt(dot(values, 0, 0, kLength));
  EXPECT_NEAR(dot(got, 0, 0, kLength), 1, 1e-6);
  EXPECT_EQ(dot(got, 1, 1, kLength) + dot(got, 2, 2, kLength), 0);

  const Factor shorter{.data = place().put(values), .length = kLength, .columns = 1};
  orthogonalize(place().executor(), {&shorter, 1}, 0.5F);
  const std::vector<float> divided = place().get(shorter.data, kLength);
  EXPECT_NEAR(std::sqrt(dot(divided, 0, 0, kLength)), length / (length + 0.5), 1e-6);

  // and become others where a step begins
  const Beginning beginning{
      .factor = {.data = place().put(std::vector<float>(3 * kLength)), .length = kLength, .columns = 3},
      .kept = place().put(values),
      .seed = 3};
  begin_factors(place().executor(), {&beginning, 1}, 0);
  const std::vector<float> begun = place().get(beginning.factor.data, beginning.factor.count());
  EXPECT_NEAR(begun[7], static_cast<double>(values[7]) / length, 1e-6);
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b <= a; ++b) EXPECT_NEAR(dot(begun, a, b, kLength), a == b ? 1 : 0, 1e-6);
  }
}

TEST_P(LowRank, BeginningsAreKeptOrRandom) {
  constexpr std::size_t kLength = 5000;
  const auto begin = [&](std::vector<float> kept, std::uint64_t seed) {
    const Factor factor{.data = place().put(std::vector<float>(2 * kLength)), .length = kLength, .columns = 2};
    const Beginning beginning{
        .factor = factor, .kept = kept.empty() ? nullptr : place().put(std::move(kept)), .seed = seed};
    begin_factors(place().executor(), {&beginning, 1}, 0);
    return place().get(factor.data, factor.count());
  };
  const std::vector<float> first = begin({}, 1);
  EXPECT_EQ(begin({}, 1), first);
  EXPECT_NE(begin({}, 2), first);
  std::vector<float> kept = numbers(2 * kLength, 4);
  EXPECT_NE(begin(kept, 1), first);
  for (const std::size_t place : {std::size_t{0}, 2 * kLength - 1}) {
    std::vector<float> broken = kept;
    broken[place] = kNotFinite;
    EXPECT_EQ(begin(broken, 1), first) << "as if nothing had been kept";
  }
  // normal numbers, of length 1: their squares add up to 1, their fourth powers to 3 / n, what is beyond 3 is rare
  double fourth = 0;
  std::size_t far = 0;
  for (std::size_t i = 0; i < kLength; ++i) {
    fourth += std::pow(double{first[i]}, 4);
    far += static_cast<std::size_t>(std::fabs(double{first[i]}) > 3 / std::sqrt(double{kLength}));
  }
  EXPECT_NEAR(fourth * kLength, 3, 0.4);
  EXPECT_GT(far, 0U);
  EXPECT_LT(far, kLength / 200);
}

TEST_P(LowRank, FactorsThatAreNotFiniteAreFound) {
  std::vector<Factor> factors;
  std::vector<std::uint32_t> wanted;
  for (std::size_t i = 0; i < kMaxFactors + 20; ++i) {
    std::vector<float> values = numbers(3 * (i + 1), 1);
    wanted.push_back(i % 3 == 1 ? 0 : 1);
    if (i % 3 == 1) values[(7 * i) % values.size()] = i % 2 == 0 ? kNotFinite : std::nanf("");
    factors.push_back({.data = place().put(values), .length = i + 1, .columns = 3});
  }
  auto* const finite = place().put(std::vector<std::uint32_t>(factors.size() + 1, 9));
  check_finite(place().executor(), factors, finite);
  wanted.push_back(9);
  EXPECT_EQ(place().get(finite, wanted.size()), wanted);
}

}  // namespace
}  // namespace ddp::kernels
