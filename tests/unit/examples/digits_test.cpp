// The digits file; the order and parts of samples; the network's gradients, against finite differences; and that shards
// add up to the whole batch.
#include "digits/digits.hpp"

namespace digits {
namespace {

using testing::HasSubstr;

/// A correct line with one field replaced.
std::string line_with(std::size_t field, const std::string& text) {
  std::string line;
  for (std::size_t i = 0; i <= kPixels; ++i) line += (i == 0 ? "" : ",") + (i == field ? text : std::string{"3"});
  return line;
}

/// load()'s error for a file with @p text; "" if it accepts the file.
std::string refusal_of(const std::string& text, Dataset* dataset = nullptr) {
  const auto file = std::filesystem::temp_directory_path() / ("some.csv" + std::to_string(::getpid()));
  std::ofstream(file) << text;
  std::string refusal;
  try {
    const Dataset read = load(file);
    if (dataset != nullptr) *dataset = read;
  } catch (const std::runtime_error& error) {
    refusal = error.what();
  }
  std::filesystem::remove(file);
  return refusal;
}

TEST(DigitsFile, HoldsTheWholeTestSet) {
  const Dataset dataset = load(default_file());
  EXPECT_EQ(dataset.size(), 1797U);
  EXPECT_EQ(dataset.pixels.size(), 1797U * kPixels);
  std::array<int, kClasses> counts{};
  for (const auto label : dataset.labels) ++counts.at(label);
  // The counts that the data set's own description gives for its test set.
  EXPECT_THAT(counts, testing::ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
  // The first image is a 0, whose second row is 0 0 13 15 10 15 5 0.
  EXPECT_EQ(dataset.labels.front(), 0);
  EXPECT_THAT(std::span{dataset.pixels}.subspan(8, 8), testing::ElementsAre(0, 0, 13, 15, 10, 15, 5, 0));
}

TEST(DigitsFile, LimitsOfValuesAreAcceptedAndOthersRefusedByLine) {
  Dataset dataset;
  EXPECT_EQ(refusal_of(line_with(0, "0") + "\n" + line_with(63, "16") + "\n" + line_with(64, "9"), &dataset), "");
  ASSERT_EQ(dataset.size(), 3U);
  EXPECT_EQ(dataset.pixels[0], 0);
  EXPECT_EQ(dataset.pixels[kPixels + 63], 16);
  EXPECT_EQ(dataset.labels[2], 9);
  const std::string good = line_with(0, "3") + "\n";
  for (const auto& [field, text] : {std::pair{0, ""},
                                    {0, "x"},
                                    {0, "17"},
                                    {5, "-1"},
                                    {9, " 3"},
                                    {9, "3 "},
                                    {63, "3.5"},
                                    {63, "99999999999999999999"},
                                    {64, "10"},
                                    {64, ""},
                                    {64, "3,3"},
                                    {63, "3\n3"}}) {
    SCOPED_TRACE(testing::Message() << "field " << field << " is '" << text << "'");
    EXPECT_THAT(refusal_of(good + line_with(static_cast<std::size_t>(field), text) + "\n" + good),
                testing::AllOf(HasSubstr("some.csv"), HasSubstr("line 2 ")));
  }
  EXPECT_THAT(refusal_of(""), HasSubstr("is empty"));
  EXPECT_THROW(load("/no/such/folder/digits.csv"), std::runtime_error);
  EXPECT_THROW(load("/"), std::runtime_error);
}

TEST(OrderOfSamples, IsAPermutationThatEveryPlatformMakes) {
  for (const std::size_t count : {0U, 1U, 2U, 100U}) {
    std::vector<std::size_t> order = shuffled_order(count, 1, 1);
    std::sort(order.begin(), order.end());
    std::vector<std::size_t> expected(count);
    std::iota(expected.begin(), expected.end(), std::size_t{0});
    EXPECT_EQ(order, expected);
  }
  EXPECT_NE(shuffled_order(100, 1, 1), shuffled_order(100, 1, 2));
  EXPECT_NE(shuffled_order(100, 1, 1), shuffled_order(100, 2, 1));
  EXPECT_NE(shuffled_order(100, 1, 2), shuffled_order(100, 2, 1));
  // Computed independently of this code, with Python's integers and the published definition of MT19937-64.
  EXPECT_THAT(shuffled_order(10, 1, 0), testing::ElementsAre(1, 7, 3, 9, 4, 0, 5, 2, 6, 8));
}

TEST(Batches, CoverTheOrderAndOnlyTheLastIsSmaller) {
  const std::vector<std::size_t> order = shuffled_order(10, 3, 0);
  const auto batches = global_batches(order, 4);
  ASSERT_EQ(batches.size(), 3U);
  std::vector<std::size_t> joined;
  for (const auto batch : batches) joined.insert(joined.end(), batch.begin(), batch.end());
  EXPECT_EQ(joined, order);
  EXPECT_EQ(batches[0].size(), 4U);
  EXPECT_EQ(batches[1].size(), 4U);
  EXPECT_EQ(batches[2].size(), 2U);
  EXPECT_EQ(global_batches(order, 5).size(), 2U);
  EXPECT_EQ(global_batches(order, 11).size(), 1U);
  EXPECT_TRUE(global_batches({}, 4).empty());
}

TEST(Shard, IsAnEvenPartitionInRankOrderForManySizes) {
  for (std::size_t count = 0; count <= 70; ++count) {
    const std::vector<std::size_t> batch = shuffled_order(count, 5, count);
    for (int world_size = 1; world_size <= 40; ++world_size) {
      SCOPED_TRACE(testing::Message() << count << " samples, " << world_size << " ranks");
      std::vector<std::size_t> joined;
      std::size_t smallest = count;
      std::size_t largest = 0;
      std::size_t before = count;
      for (int rank = 0; rank < world_size; ++rank) {
        const auto part = shard_of(batch, rank, world_size);
        joined.insert(joined.end(), part.begin(), part.end());
        smallest = std::min(smallest, part.size());
        largest = std::max(largest, part.size());
        ASSERT_LE(part.size(), before) << "the larger parts come first";
        before = part.size();
      }
      ASSERT_EQ(joined, batch) << "every sample belongs to exactly one rank, in order";
      ASSERT_LE(largest - smallest, 1U);
    }
  }
}

TEST(Shard, ExamplesThatCanBeCheckedByEye) {
  const std::vector<std::size_t> batch{10, 11, 12, 13, 14};
  EXPECT_THAT(shard_of(batch, 0, 3), testing::ElementsAre(10, 11));
  EXPECT_THAT(shard_of(batch, 1, 3), testing::ElementsAre(12, 13));
  EXPECT_THAT(shard_of(batch, 2, 3), testing::ElementsAre(14));
  EXPECT_THAT(shard_of(batch, 4, 8), testing::ElementsAre(14));
  EXPECT_TRUE(shard_of(batch, 5, 8).empty());
  EXPECT_TRUE(shard_of(batch, 7, 8).empty());
}

constexpr std::size_t kWidths[] = {5, 7, 4, 3};

template <class Scalar>
Batch<Scalar> random_batch(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 generator{seed};
  Batch<Scalar> batch;
  for (std::size_t sample = 0; sample < size; ++sample) {
    for (std::size_t i = 0; i < kWidths[0]; ++i)
      batch.inputs.push_back(static_cast<Scalar>(generator() >> 11U) * static_cast<Scalar>(0x1p-53));
    batch.labels.push_back(static_cast<std::uint8_t>(generator() % 3));
  }
  return batch;
}

/// Biases start at 0, where a wrong bias gradient of a symmetric network could hide.
void make_biases_uneven(Network<double>& network) {
  double value = -0.3;
  for (auto& parameter : network.parameters()) {
    if (parameter.shape.size() == 1) {
      for (double& bias : parameter.value) bias = value += 0.07;
    }
  }
}

void ignore_ready(std::size_t) {}

/// Gradient of scale * summed loss by every parameter in turn, as one list.
std::vector<double> analytic_gradient(Network<double>& network, const Batch<double>& batch, double scale) {
  network.forward(batch);
  network.backward(scale, ignore_ready);
  std::vector<double> gradient;
  for (const auto& parameter : network.parameters()) {
    gradient.insert(gradient.end(), parameter.gradient.begin(), parameter.gradient.end());
  }
  return gradient;
}

/// The same by central differences: error of order step^2 from the formula and epsilon / step from rounding.
std::vector<double> numeric_gradient(Network<double>& network, const Batch<double>& batch, double scale) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient;
  for (auto& parameter : network.parameters()) {
    for (double& value : parameter.value) {
      const double middle = value;
      value = middle + kStep;
      const double above = network.forward(batch).loss_sum;
      value = middle - kStep;
      const double below = network.forward(batch).loss_sum;
      value = middle;
      gradient.push_back(scale * (above - below) / (2 * kStep));
    }
  }
  return gradient;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b.at(i)));
  return largest;
}

TEST(NetworkGradient, EqualsFiniteDifferencesForEveryParameter) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Network<double> network{kWidths, seed};
    make_biases_uneven(network);
    const auto batch = random_batch<double>(6, seed);
    const auto analytic = analytic_gradient(network, batch, 0.25);
    const auto numeric = numeric_gradient(network, batch, 0.25);
    ASSERT_EQ(analytic.size(), 7U * 5 + 7 + 4 * 7 + 4 + 3 * 4 + 3);
    EXPECT_LT(largest_difference(analytic, numeric), 1e-9);
    EXPECT_GT(std::abs(*std::max_element(analytic.begin(), analytic.end())), 1e-2) << "the gradient must not vanish";

    // The check can fail: with another scale, label or sample it does.
    EXPECT_GT(largest_difference(analytic_gradient(network, batch, 0.26), numeric), 1e-4);
    auto relabelled = batch;
    relabelled.labels[3] = static_cast<std::uint8_t>((relabelled.labels[3] + 1) % 3);
    EXPECT_GT(largest_difference(analytic_gradient(network, relabelled, 0.25), numeric), 1e-4);
  }
}

TEST(NetworkGradient, IsAnnouncedOnceFromTheLastLayerAndFinalByThen) {
  Network<double> network{kWidths, 1};
  std::vector<std::size_t> announced;
  std::vector<std::vector<double>> at_announcement(network.parameters().size());
  network.forward(random_batch<double>(6, 1));
  network.backward(1, [&](std::size_t parameter) {
    announced.push_back(parameter);
    at_announcement.at(parameter) = network.parameters()[parameter].gradient;
  });
  EXPECT_THAT(announced, testing::ElementsAre(5, 4, 3, 2, 1, 0));
  for (std::size_t p = 0; p < at_announcement.size(); ++p) {
    EXPECT_EQ(at_announcement[p], network.parameters()[p].gradient) << network.parameters()[p].name;
  }
}

TEST(NetworkGradient, MayBeOverwrittenOnceAnnounced) {
  // A reducer writes averages into gradients while earlier layers are still being computed.
  Network<double> undisturbed{kWidths, 1};
  Network<double> disturbed{kWidths, 1};
  const auto batch = random_batch<double>(6, 1);
  undisturbed.forward(batch);
  undisturbed.backward(1, ignore_ready);
  disturbed.forward(batch);
  disturbed.backward(1, [&](std::size_t parameter) {
    if (parameter >= 2) std::fill_n(disturbed.parameters()[parameter].gradient.begin(), 2, 1e6);
  });
  EXPECT_EQ(disturbed.parameters()[0].gradient, undisturbed.parameters()[0].gradient);
  EXPECT_EQ(disturbed.parameters()[1].gradient, undisturbed.parameters()[1].gradient);
}

TEST(NetworkGradient, OfAnEmptyBatchIsZeroAndAnnounced) {
  Network<float> network{kWidths, 1};
  network.forward(random_batch<float>(4, 1));
  network.backward(1, ignore_ready);
  std::size_t announced = 0;
  EXPECT_EQ(network.forward({}).loss_sum, 0);
  network.backward(1, [&](std::size_t) { ++announced; });
  EXPECT_EQ(announced, network.parameters().size());
  for (const auto& parameter : network.parameters()) {
    EXPECT_THAT(parameter.gradient, testing::Each(0.0F)) << parameter.name;
  }
}

/// Average over ranks of what each computes for its part, as a reducer would leave it.
/// @param by_own_part scales by the size of the rank's own part, the usual mistake.
std::vector<double> averaged_gradient(Network<double>& network, const Batch<double>& batch, int world_size,
                                      bool by_own_part) {
  std::vector<std::size_t> positions(batch.size());
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  std::vector<double> average;
  for (int rank = 0; rank < world_size; ++rank) {
    Batch<double> part;
    for (const std::size_t position : shard_of(positions, rank, world_size)) {
      const auto first = batch.inputs.begin() + static_cast<std::ptrdiff_t>(position * kWidths[0]);
      part.inputs.insert(part.inputs.end(), first, first + kWidths[0]);
      part.labels.push_back(batch.labels[position]);
    }
    const double own = part.size() == 0 ? 0 : 1 / static_cast<double>(part.size());
    const double right = world_size / static_cast<double>(batch.size());
    const auto gradient = analytic_gradient(network, part, by_own_part ? own : right);
    average.resize(gradient.size());
    for (std::size_t i = 0; i < gradient.size(); ++i) average[i] += gradient[i] / world_size;
  }
  return average;
}

TEST(NetworkGradient, OfShardsAveragesToThatOfTheWholeBatch) {
  Network<double> network{kWidths, 1};
  for (const std::size_t size : {1U, 2U, 7U, 8U, 13U}) {
    const auto batch = random_batch<double>(size, size);
    const auto whole = analytic_gradient(network, batch, 1 / static_cast<double>(size));
    for (const int world_size : {1, 2, 3, 4, 9}) {
      SCOPED_TRACE(testing::Message() << size << " samples, " << world_size << " ranks");
      EXPECT_LT(largest_difference(averaged_gradient(network, batch, world_size, false), whole), 1e-14);
      const double mistake = largest_difference(averaged_gradient(network, batch, world_size, true), whole);
      if (size % static_cast<std::size_t>(world_size) == 0) {
        EXPECT_LT(mistake, 1e-14);
      } else {
        EXPECT_GT(mistake, 1e-3) << "scaling by the own part must be wrong for uneven parts";
      }
    }
  }
}

TEST(Network, LossAndAccuracyOfKnownProbabilities) {
  // All weights 0 and biases {0, log 3, 0}: probabilities are 1/5, 3/5, 1/5 whatever the input.
  constexpr std::size_t kTwoLayers[] = {2, 3};
  Network<double> network{kTwoLayers, 1};
  std::fill(network.parameters()[0].value.begin(), network.parameters()[0].value.end(), 0);
  network.parameters()[1].value[1] = std::log(3.0);
  const auto outcome = network.forward({.inputs = {1, 2, 3, 4}, .labels = {1, 2}});
  EXPECT_NEAR(outcome.loss_sum, -std::log(0.6) - std::log(0.2), 1e-12);
  EXPECT_EQ(outcome.correct, 1U);
}

TEST(Network, LargeScoresDoNotOverflow) {
  constexpr std::size_t kTwoLayers[] = {1, 2};
  Network<float> network{kTwoLayers, 1};
  network.parameters()[0].value = {1000.0F, -1000.0F};
  const auto outcome = network.forward({.inputs = {1, 1}, .labels = {0, 1}});
  EXPECT_FLOAT_EQ(static_cast<float>(outcome.loss_sum), 2000.0F);
}

TEST(Network, SameSeedSameWeights) {
  const Network<float> network{kWidths, 4};
  EXPECT_EQ((Network<float>{kWidths, 4}.parameters()[0].value), network.parameters()[0].value);
  EXPECT_NE((Network<float>{kWidths, 5}.parameters()[0].value), network.parameters()[0].value);
  EXPECT_EQ(network.parameters()[2].name, "layer2.weight");
  EXPECT_THAT(network.parameters()[2].shape, testing::ElementsAre(4, 7));
  EXPECT_THAT(network.parameters()[3].shape, testing::ElementsAre(4));
}

TEST(Network, UpdateFollowsItsFormula) {
  constexpr std::size_t kOneWeight[] = {1, 1};
  Network<double> network{kOneWeight, 1};
  auto& weight = network.parameters()[0];
  weight.value[0] = 1;
  weight.gradient[0] = 2;
  network.update(0.1, 0.5);  // velocity 2
  EXPECT_DOUBLE_EQ(weight.value[0], 0.8);
  weight.gradient[0] = 1;
  network.update(0.1, 0.5);  // velocity 0.5 * 2 + 1 = 2
  EXPECT_DOUBLE_EQ(weight.value[0], 0.6);
}

}  // namespace
}  // namespace digits
