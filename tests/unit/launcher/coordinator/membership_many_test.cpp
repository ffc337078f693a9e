// Thousands of nodes join, and what each may say depends on those that are there.
#include "coordinator/membership_plan.hpp"

namespace ddp::launcher {
namespace {

const Deadline::Clock::time_point kStart{1000s};

control::Hello hello(const std::string& host, std::int64_t order, const std::string& program = "train.py") {
  return {.version = "1.0",
          .run_id = "run",
          .host = host,
          .order = order,
          .nproc = 2,
          .role = "default",
          .program = program,
          .pid = 7};
}

MembershipPlan job_of(int min_nodes, int max_nodes) {
  return {{.min_nodes = min_nodes, .max_nodes = max_nodes, .run_id = "run", .version = "1.0", .join_timeout = 600s},
          kStart};
}

TEST(MembershipOfMany, ThousandsOfNodesJoinQuickly) {
  constexpr int kNodes = 20'000;
  MembershipPlan membership = job_of(kNodes, kNodes);
  const Deadline limit = Deadline::after(5s);
  for (int node = 0; node < kNodes && !limit.expired(); ++node)
    ASSERT_EQ(membership.join(node, hello("n", node), kStart), "") << node;
  EXPECT_EQ(membership.num_members(), kNodes);  // to compare each with all before took COMPARED
}

TEST(MembershipOfMany, WhatALostNodeSaidIsFreeAgain) {
  MembershipPlan membership = job_of(1, 4);
  EXPECT_EQ(membership.join(0, hello("a", 3), kStart), "");
  EXPECT_THAT(membership.join(1, hello("b", 3), kStart), HasSubstr("both say that they are node 3"));
  EXPECT_THAT(membership.join(1, hello("b", 4, "other.py"), kStart), HasSubstr("start the same program on all nodes"));
  EXPECT_EQ(membership.join(1, hello("b", 4), kStart), "");
  EXPECT_TRUE(membership.lost(0));
  EXPECT_FALSE(membership.has_joined(0));
  EXPECT_THAT(membership.join(2, hello("c", 3, "other.py"), kStart), HasSubstr("start the same program on all nodes"));
  EXPECT_TRUE(membership.lost(1));
  EXPECT_FALSE(membership.lost(1));
  EXPECT_EQ(membership.join(2, hello("c", 3, "other.py"), kStart), "");
}

}  // namespace
}  // namespace ddp::launcher
