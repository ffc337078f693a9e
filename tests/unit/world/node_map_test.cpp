// Local ranks, node ranks and ranks per node, for every kind of placement.
#include "world/node_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

using Ranks = std::vector<int>;

Ranks local_ranks(const NodeMap& map) {
  Ranks all;
  for (int rank = 0; rank < map.world_size(); ++rank) all.push_back(map.local_rank_of(rank));
  return all;
}

TEST(NodeMap, Uneven) {
  const NodeMap map{{0, 0, 0, 1, 2, 2}};
  EXPECT_EQ(map.world_size(), 6);
  EXPECT_EQ(map.num_nodes(), 3);
  EXPECT_EQ(local_ranks(map), (Ranks{0, 1, 2, 0, 0, 1}));
  EXPECT_EQ(map.ranks_on(0), (Ranks{0, 1, 2}));
  EXPECT_EQ(map.ranks_on(1), (Ranks{3}));
  EXPECT_EQ(map.ranks_on(2), (Ranks{4, 5}));
  EXPECT_EQ(map.node_of(4), 2);
}

TEST(NodeMap, Cyclic) {
  const NodeMap map{{0, 1, 2, 0, 1, 2, 0}};
  EXPECT_EQ(local_ranks(map), (Ranks{0, 0, 0, 1, 1, 1, 2}));
  EXPECT_EQ(map.ranks_on(0), (Ranks{0, 3, 6}));
  EXPECT_EQ(map.ranks_on(2), (Ranks{2, 5}));
}

TEST(NodeMap, NodesMayAppearInAnyOrder) {
  const NodeMap map{{2, 0, 1, 2}};
  EXPECT_EQ(map.num_nodes(), 3);
  EXPECT_EQ(map.ranks_on(2), (Ranks{0, 3}));
  EXPECT_EQ(local_ranks(map), (Ranks{0, 0, 0, 1}));
}

TEST(NodeMap, LocalRankAndNodeDetermineTheRank) {
  const NodeMap map{{1, 0, 1, 1, 0, 2, 0}};
  for (int rank = 0; rank < map.world_size(); ++rank) {
    EXPECT_EQ(map.ranks_on(map.node_of(rank)).at(static_cast<std::size_t>(map.local_rank_of(rank))), rank);
  }
}

TEST(NodeMap, ImpossibleNumbersAreRefused) {
  for (const Ranks& numbers : {Ranks{0, 2}, Ranks{1, 1}, Ranks{-1, 0}, Ranks{0, 1'000'000'000}}) {
    const auto error = test::error_of([&] { NodeMap{numbers}; });
    ASSERT_TRUE(error) << testing::PrintToString(numbers);
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
}

TEST(NodeMap, RanksAndNodesOutsideAreRefused) {
  const NodeMap map{{0, 0}};
  EXPECT_THROW(static_cast<void>(map.node_of(2)), std::out_of_range);
  EXPECT_THROW(static_cast<void>(map.local_rank_of(-1)), std::out_of_range);
  EXPECT_THROW(static_cast<void>(map.ranks_on(1)), std::out_of_range);
}

}  // namespace
}  // namespace ddp::world
