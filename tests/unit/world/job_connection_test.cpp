// Local ranks, node ranks and ranks per node, for every kind of placement.
#include "world/job_connection.hpp"
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

// The mapping strings of PMI-2 and PMIx: blocks, uneven and cyclic placements, and everything that is not a mapping.

namespace {

using Nodes = std::vector<int>;

TEST(ProcessMapping, Blocks) {
  EXPECT_EQ(parse_process_mapping("(vector,(0,2,4))", 8), (Nodes{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(parse_process_mapping("(vector,(0,1,1))", 1), (Nodes{0}));
  EXPECT_EQ(parse_process_mapping("(vector,(0,3,1))", 3), (Nodes{0, 1, 2}));
}

TEST(ProcessMapping, UnevenBlocks) {
  EXPECT_EQ(parse_process_mapping("(vector,(0,1,5),(1,3,1))", 8), (Nodes{0, 0, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(parse_process_mapping("(vector,(0,1,1),(1,1,3))", 4), (Nodes{0, 1, 1, 1}));
}

TEST(ProcessMapping, CyclicPlacementRepeatsFromTheFirstBlock) {
  EXPECT_EQ(parse_process_mapping("(vector,(0,4,1))", 10), (Nodes{0, 1, 2, 3, 0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(parse_process_mapping("(vector,(0,2,2))", 6), (Nodes{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(parse_process_mapping("(vector,(0,2,1),(0,1,1))", 5), (Nodes{0, 1, 0, 0, 1}));
}

TEST(ProcessMapping, StopsInTheMiddleOfABlock) {
  EXPECT_EQ(parse_process_mapping("(vector,(0,2,4))", 5), (Nodes{0, 0, 0, 0, 1}));
}

TEST(ProcessMapping, NodeNumbersAreMadeDenseInAscendingOrder) {
  EXPECT_EQ(parse_process_mapping("(vector,(7,1,2),(3,1,1))", 3), (Nodes{1, 1, 0}));
  EXPECT_EQ(parse_process_mapping("(vector,(2,1,1),(9,2,1))", 3), (Nodes{0, 1, 2}));
  EXPECT_EQ(parse_process_mapping("(vector,(5,4,1))", 2), (Nodes{0, 1})) << "nodes without ranks do not count";
}

TEST(ProcessMapping, SpacesDoNotMatter) {
  EXPECT_EQ(parse_process_mapping(" ( vector , ( 0 , 2 , 1 ) )", 2), (Nodes{0, 1}));
}

TEST(ProcessMapping, EverythingElseIsRefusedAndShown) {
  for (const std::string text : {"",
                                 "vector",
                                 "(vector)",
                                 "(vector,)",
                                 "(vector,())",
                                 "(vector,(0,1))",
                                 "(vector,(0,1,1,1))",
                                 "(vector,(0,1,1)",
                                 "(vector,(0,1,1)))",
                                 "(vector,(0,1,1)) x",
                                 "(vector,(0,0,1))",
                                 "(vector,(0,1,0))",
                                 "(vector,(-1,1,1))",
                                 "(vector,(0,-1,1))",
                                 "(vector,(a,1,1))",
                                 "(vector,(0,99999999999999999999,1))",
                                 "(vector,(0,2147483647,2147483647))",
                                 "(vector,(0,1,1),)",
                                 "(vector(0,1,1))",
                                 "(matrix,(0,1,1))",
                                 "(vector,(0x1,1,1))",
                                 "(vector,(0,1,1)\n)"}) {
    const auto error = test::error_of([&] { parse_process_mapping(text, 4); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::protocol) << text;
    EXPECT_THAT(error->what(), testing::HasSubstr("'" + text + "'"));
  }
}

TEST(ProcessMapping, EveryCutIsRefused) {
  const std::string whole = "(vector,(0,1,5),(1,3,1))";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(test::error_of([&] { parse_process_mapping(whole.substr(0, size), 8); })) << whole.substr(0, size);
  }
}

}  // namespace

}  // namespace ddp::world
