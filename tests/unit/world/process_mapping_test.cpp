// The mapping strings of PMI-2 and PMIx: blocks, uneven and cyclic placements, and everything that is not a mapping.
#include "world/process_mapping.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
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
