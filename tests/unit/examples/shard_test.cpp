// Parts of a batch: for any size and any number of ranks they are the batch, cut as evenly as possible.
#include "digits/shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <ddp/error.hpp>

#include "digits/sample_order.hpp"

namespace digits {
namespace {

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

TEST(Shard, RefusesRanksOutsideTheWorld) {
  const std::vector<std::size_t> batch{1, 2, 3};
  EXPECT_THROW((void)shard_of(batch, -1, 2), ddp::Error);
  EXPECT_THROW((void)shard_of(batch, 2, 2), ddp::Error);
  EXPECT_THROW((void)shard_of(batch, 0, 0), ddp::Error);
}

}  // namespace
}  // namespace digits
