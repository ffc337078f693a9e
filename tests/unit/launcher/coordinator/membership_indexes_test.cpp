// A member's order and program are looked up when others join, and are free again once it is lost.
#include "membership_hello.hpp"

namespace ddp::launcher {
namespace {

const Deadline::Clock::time_point kJoined{1000s};

MembershipPlan many_of(int min_nodes, int max_nodes) {
  return {{.min_nodes = min_nodes, .max_nodes = max_nodes, .run_id = "run", .version = "1.0", .join_timeout = 600s},
          kJoined};
}

TEST(MembershipIndexes, WhatALostNodeSaidIsFreeAgain) {
  MembershipPlan membership = many_of(1, 4);
  EXPECT_EQ(membership.join(0, hello("a", 3), kJoined), "");
  EXPECT_THAT(membership.join(1, hello("b", 3), kJoined), HasSubstr("both say that they are node 3"));
  EXPECT_THAT(membership.join(1, hello("b", 4, "other.py"), kJoined), HasSubstr("start the same program on all nodes"));
  EXPECT_EQ(membership.join(1, hello("b", 4), kJoined), "");
  EXPECT_TRUE(membership.lost(0));
  EXPECT_FALSE(membership.has_joined(0));
  EXPECT_THAT(membership.join(2, hello("c", 3, "other.py"), kJoined), HasSubstr("start the same program on all nodes"));
  EXPECT_TRUE(membership.lost(1));
  EXPECT_FALSE(membership.lost(1));
  EXPECT_EQ(membership.join(2, hello("c", 3, "other.py"), kJoined), "");
}

}  // namespace
}  // namespace ddp::launcher
