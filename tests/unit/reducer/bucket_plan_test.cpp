// Which tensors share a bucket: the known answers of PyTorch's tests, and properties that hold for any input.
#include "reducer/bucket.hpp"

#include <ddp/error.hpp>

namespace ddp::reducer {
namespace {

using Limits = std::vector<std::size_t>;

TensorInfo tensor(DType dtype, std::size_t elements, Device device = {}) {
  return {.size_bytes = elements * size_of(dtype), .dtype = dtype, .device = device};
}

std::vector<TensorInfo> floats(const std::vector<std::size_t>& counts) {
  std::vector<TensorInfo> tensors;
  for (const std::size_t count : counts) tensors.push_back(tensor(DType::float32, count));
  return tensors;
}

/// float32 x 50, float64 x 25, three times: all of 200 bytes.
std::vector<TensorInfo> alternating() {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(tensor(DType::float32, 50));
    tensors.push_back(tensor(DType::float64, 25));
  }
  return tensors;
}

TEST(BucketPlan, LimitsAndTypesDecide) {
  // the four cases of torch/test/distributed/test_c10d_common.py, ComputeBucketPlanTest
  EXPECT_EQ(assign_buckets(floats({100, 200, 100, 50}), Limits{400}), (BucketPlan{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(assign_buckets(alternating(), Limits{400}), (BucketPlan{{0, 2}, {1, 3}, {4}, {5}}));
  EXPECT_EQ(assign_buckets(floats({10, 10, 10, 10}), Limits{40, 80}), (BucketPlan{{0}, {1, 2}, {3}}));
  EXPECT_EQ(assign_buckets(alternating(), Limits{200, 400}), (BucketPlan{{0}, {1}, {2, 4}, {3, 5}}));
  EXPECT_EQ(assign_buckets({}, Limits{100}), BucketPlan{});
  EXPECT_EQ(assign_buckets(floats({1, 1000, 1}), Limits{100}), (BucketPlan{{0, 1}, {2}})) << "large ones are not split";
  EXPECT_EQ(assign_buckets(floats({0, 0, 25, 0}), Limits{100}), (BucketPlan{{0, 1, 2}, {3}})) << "empty ones count";
}

TEST(BucketPlan, DevicesAreKeptApart) {
  const Device first{.type = DeviceType::cuda, .index = 0};
  const Device second{.type = DeviceType::cuda, .index = 1};
  const std::vector<TensorInfo> tensors{tensor(DType::float32, 10, first), tensor(DType::float32, 10, second),
                                        tensor(DType::float32, 10, first), tensor(DType::float32, 10)};
  EXPECT_EQ(assign_buckets(tensors, Limits{80}), (BucketPlan{{0, 2}, {1}, {3}}));
}

TEST(BucketPlan, GivenOrderIsKept) {
  // gradients became ready from the last parameter to the first
  const std::vector<std::size_t> order{3, 2, 1, 0};
  const auto result = assign_buckets(floats({10, 10, 10, 10}), Limits{40, 80}, order);
  EXPECT_EQ(result, (BucketPlan{{3}, {2, 1}, {0}}));
}

TEST(BucketPlan, GivenOrderClosesInTheOrderOfFilling) {
  // float64 fills first, although float32 appeared first
  const std::vector<TensorInfo> tensors{tensor(DType::float32, 10), tensor(DType::float64, 50),
                                        tensor(DType::float32, 90)};
  EXPECT_EQ(assign_buckets(tensors, Limits{400}, std::vector<std::size_t>{7, 8, 9}), (BucketPlan{{8}, {7, 9}}));
  EXPECT_EQ(assign_buckets(tensors, Limits{400}), (BucketPlan{{0, 2}, {1}})) << "without, by smallest index";
}

TEST(BucketPlan, LeftoversComeBehindInTheOrderOfFirstAppearance) {
  // int64 comes before float32 here, but after it in the enum
  const std::vector<TensorInfo> tensors{tensor(DType::int64, 1), tensor(DType::float32, 1), tensor(DType::float64, 50),
                                        tensor(DType::float32, 1), tensor(DType::int64, 1)};
  const std::vector<std::size_t> order{4, 3, 2, 1, 0};
  EXPECT_EQ(assign_buckets(tensors, Limits{400}, order), (BucketPlan{{2}, {4, 0}, {3, 1}}));
}

TEST(BucketPlan, BadArgumentsAreRefused) {
  const auto refused = [](const Limits& limits, const std::vector<std::size_t>& order) {
    try {
      assign_buckets(floats({1, 2}), limits, order);
    } catch (const Error& error) {
      return error.code() == ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_TRUE(refused({}, {}));
  EXPECT_TRUE(refused({1}, {0}));
  EXPECT_TRUE(refused({1}, {0, 1, 2}));
  EXPECT_FALSE(refused({1}, {1, 0}));
}

/// A random list of tensors of several kinds.
std::vector<TensorInfo> random_tensors(std::mt19937& random) {
  constexpr std::array kTypes{DType::float32, DType::float64, DType::float16};
  std::vector<TensorInfo> tensors(random() % 40);
  for (TensorInfo& each : tensors) {
    each = tensor(kTypes[random() % kTypes.size()], random() % 60,
                  {.type = DeviceType::cuda, .index = static_cast<int>(random() % 2)});
  }
  return tensors;
}

/// The rule in other words, for each kind on its own: a bucket takes tensors until it has reached its limit.
void expect_lawful(const std::vector<TensorInfo>& tensors, const Limits& limits, const BucketPlan& result,
                   const std::vector<std::size_t>& order) {
  std::vector<std::size_t> position(tensors.size());  // of a tensor index in the list
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = i;
  std::multiset<std::size_t> assigned;
  std::map<std::pair<DType, int>, std::vector<std::size_t>> buckets_of_kind;
  for (std::size_t b = 0; b < result.size(); ++b) {
    const auto& bucket = result[b];
    ASSERT_FALSE(bucket.empty());
    const TensorInfo& leader = tensors[position[bucket.front()]];
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      assigned.insert(bucket[i]);
      EXPECT_EQ(tensors[position[bucket[i]]].dtype, leader.dtype);
      EXPECT_EQ(tensors[position[bucket[i]]].device, leader.device);
      if (i > 0) {
        EXPECT_LT(position[bucket[i - 1]], position[bucket[i]]) << "order is kept inside a bucket";
      }
    }
    buckets_of_kind[{leader.dtype, leader.device.index}].push_back(b);
  }
  EXPECT_TRUE(std::equal(assigned.begin(), assigned.end(),
                         [&] {
                           std::vector<std::size_t> sorted = order;
                           std::sort(sorted.begin(), sorted.end());
                           return sorted;
                         }()
                             .begin()))
      << "each tensor once";
  EXPECT_EQ(assigned.size(), tensors.size());

  for (auto& [kind, numbers] : buckets_of_kind) {
    std::sort(numbers.begin(), numbers.end(),
              [&](std::size_t a, std::size_t b) { return position[result[a].front()] < position[result[b].front()]; });
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      const auto& bucket = result[numbers[n]];
      const std::size_t limit = limits[std::min(n, limits.size() - 1)];  // the n-th bucket of a kind has the n-th
      std::size_t total = 0;
      for (std::size_t i = 0; i + 1 < bucket.size(); ++i) total += tensors[position[bucket[i]]].size_bytes;
      EXPECT_LT(bucket.size() == 1 ? 0 : total, limit) << "it was full before its last tensor";
      total += tensors[position[bucket.back()]].size_bytes;
      if (n + 1 < numbers.size()) {
        EXPECT_GE(total, limit) << "a bucket with a successor of its kind is full";
      }
    }
  }
}

TEST(BucketPlan, PropertiesOfRandomInputs) {
  std::mt19937 random{2024};  // NOLINT(cert-msc51-cpp): the same inputs in every run
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    const auto tensors = random_tensors(random);
    Limits limits(random() % 3 + 1);
    for (std::size_t& limit : limits) limit = random() % 500 + 1;
    std::vector<std::size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), std::size_t{0});

    const auto plain = assign_buckets(tensors, limits);
    expect_lawful(tensors, limits, plain, order);
    for (std::size_t b = 1; b < plain.size(); ++b) {
      EXPECT_LT(plain[b - 1].front(), plain[b].front()) << "sorted by smallest index";
    }

    std::shuffle(order.begin(), order.end(), random);
    expect_lawful(tensors, limits, assign_buckets(tensors, limits, order), order);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ddp::reducer
