// Who may take part, when the job begins, and in which order its nodes are.
#include "coordinator/membership.hpp"

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

const Deadline::Clock::time_point kStart{1000s};

control::Hello hello(const std::string& host, std::int64_t order = -1) {
  return {.version = "1.0",
          .run_id = "run",
          .host = host,
          .order = order,
          .nproc = 2,
          .role = "default",
          .program = "train.py",
          .pid = 7};
}

MembershipRules rules(int min_nodes, int max_nodes) {
  return {.min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .run_id = "run",
          .version = "1.0",
          .join_timeout = 600s,
          .last_call = 30s,
          .replaceable = false};
}

bool complete(Membership& membership, Deadline::Clock::time_point now) { return membership.next(now).has_value(); }

std::vector<std::string> hosts(const std::optional<Roster>& roster) {
  std::vector<std::string> names;
  if (!roster) return names;
  for (const Member& member : roster->nodes) names.push_back(member.hello.host);
  return names;
}

TEST(MembershipTest, IsCompleteAtOnceWithAllNodes) {
  Membership membership{rules(1, 2), kStart};
  EXPECT_EQ(membership.join(0, hello("a"), kStart), "");
  EXPECT_FALSE(complete(membership, kStart));
  EXPECT_EQ(membership.join(1, hello("b"), kStart), "");
  EXPECT_TRUE(complete(membership, kStart));
}

TEST(MembershipTest, WaitsTheLastCallForMoreThanTheFewest) {
  Membership membership{rules(2, 4), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart + 5s);
  EXPECT_FALSE(complete(membership, kStart + 34s));
  EXPECT_EQ(membership.next_deadline()->when(), kStart + 35s);
  EXPECT_TRUE(complete(membership, kStart + 35s));
}

TEST(MembershipTest, TheLastCallBeginsAnewWhenANodeLeaves) {
  Membership membership{rules(2, 3), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart);
  EXPECT_TRUE(membership.leave(1));
  EXPECT_FALSE(membership.leave(1));
  EXPECT_FALSE(complete(membership, kStart + 60s));
  membership.join(2, hello("c"), kStart + 60s);
  EXPECT_FALSE(complete(membership, kStart + 89s));
  EXPECT_TRUE(complete(membership, kStart + 90s));
}

TEST(MembershipTest, FailsWhenTooFewCameInTime) {
  Membership membership{rules(2, 2), kStart};
  membership.join(0, hello("a"), kStart);
  EXPECT_FALSE(membership.failed(kStart + 599s));
  EXPECT_TRUE(membership.failed(kStart + 600s));
  EXPECT_EQ(membership.describe(), "1 of 2 nodes has joined: a");
}

TEST(MembershipTest, FollowsTheOrderThatNodesSay) {
  Membership membership{rules(3, 3), kStart};
  membership.join(0, hello("n1", 2), kStart);
  membership.join(1, hello("n9", 0), kStart);
  membership.join(2, hello("n5", 1), kStart);
  EXPECT_THAT(hosts(membership.next(kStart)), ElementsAre("n9", "n5", "n1"));
}

TEST(MembershipTest, ComparesNumbersInNamesAsNumbers) {
  Membership membership{rules(3, 3), kStart};
  membership.join(0, hello("node10"), kStart);
  membership.join(1, hello("node9"), kStart);
  membership.join(2, hello("node1"), kStart);
  EXPECT_THAT(hosts(membership.next(kStart)), ElementsAre("node1", "node9", "node10"));
}

TEST(MembershipTest, RefusesWhatDoesNotFit) {
  Membership membership{rules(2, 2), kStart};
  ASSERT_EQ(membership.join(0, hello("a", 0), kStart), "");

  auto other = hello("b", 1);
  other.version = "2.0";
  EXPECT_THAT(membership.join(1, other, kStart), HasSubstr("ddprun on b is version 2.0, but the coordinator's is 1.0"));
  other = hello("b", 1);
  other.run_id = "another";
  EXPECT_THAT(membership.join(1, other, kStart), HasSubstr("belongs to run 'another', but this is run 'run'"));
  other = hello("b", 1);
  other.program = "eval.py";
  EXPECT_THAT(membership.join(1, other, kStart), HasSubstr("a runs 'train.py', but b runs 'eval.py'"));
  EXPECT_THAT(membership.join(1, hello("b", 0), kStart), HasSubstr("a and b both say that they are node 0"));
  EXPECT_EQ(membership.num_members(), 1);
}

TEST(MembershipTest, AcceptsAnotherProgramInAnotherRoleAndInAnotherFolder) {
  Membership membership{rules(3, 3), kStart};
  membership.join(0, hello("a"), kStart);
  auto other = hello("b");
  other.program = "eval.py";
  other.role = "evaluator";
  EXPECT_EQ(membership.join(1, other, kStart), "");
  other = hello("c");
  other.program = "/scratch/c/train.py";
  EXPECT_EQ(membership.join(2, other, kStart), "");
}

TEST(MembershipTest, CanDoWithoutANodeThatWillNeverCome) {
  Membership membership{rules(2, 3), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart);
  EXPECT_TRUE(membership.give_up_one());
  EXPECT_TRUE(complete(membership, kStart));
  EXPECT_FALSE(membership.give_up_one());
}

TEST(MembershipTest, LaterRostersNeedOnlyTheMinimumAndCountUp) {
  Membership membership{rules(2, 4), kStart};
  for (const auto& [agent, host] : {std::pair{0, "a"}, {1, "b"}, {2, "c"}}) membership.join(agent, hello(host), kStart);
  const auto first = membership.next(kStart + 30s);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->generation, 0);
  membership.leave(1);
  const auto second = membership.next(kStart + 31s);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->generation, 1);
  EXPECT_THAT(hosts(second), ElementsAre("a", "c"));
  EXPECT_EQ(second->nodes[1].agent, 2);
  membership.join(3, hello("d"), kStart + 40s);  // a node may come back between attempts
  EXPECT_THAT(hosts(membership.next(kStart + 41s)), ElementsAre("a", "c", "d"));
  membership.leave(0);
  membership.leave(2);
  EXPECT_FALSE(membership.next(kStart + 600s));
}

TEST(MembershipTest, MembersKeepTheirIdsThroughRosters) {
  Membership membership{rules(2, 3), kStart};
  for (const char* name : {"c", "a", "b"}) membership.join(name[0], hello(name), kStart);
  const auto ids = [&] {
    const auto roster = membership.next(kStart);
    std::vector<int> found;
    for (const Member& member : roster.value().nodes) found.push_back(member.id);
    return found;
  };
  EXPECT_THAT(ids(), ElementsAre(1, 2, 0)) << "a, b, c";
  membership.leave('a');
  EXPECT_THAT(ids(), ElementsAre(2, 0));
  membership.join('A', hello("a"), kStart);
  EXPECT_THAT(ids(), ElementsAre(3, 2, 0)) << "who comes back is another member";
}

TEST(MembershipTest, RefusesMoreThanTheMost) {
  Membership membership{rules(1, 1), kStart};
  membership.join(0, hello("a"), kStart);
  EXPECT_THAT(membership.join(1, hello("b"), kStart), HasSubstr("already has its 1 nodes"));
}

}  // namespace
}  // namespace ddp::launcher
