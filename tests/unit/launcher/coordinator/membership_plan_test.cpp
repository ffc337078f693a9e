// Who may take part, when the job begins, in which order its nodes are, and what follows a generation.
#include "membership_hello.hpp"

namespace ddp::launcher {
namespace {

const Deadline::Clock::time_point kStart{1000s};

MembershipRules rules(int min_nodes, int max_nodes) {
  return {.min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .run_id = "run",
          .version = "1.0",
          .join_timeout = 600s,
          .last_call = 30s,
          .replaceable = false};
}

using Time = Deadline::Clock::time_point;

std::optional<Start> start(MembershipPlan& membership, Time now) {
  const Decision decision = membership.decide(now);
  const auto* found = std::get_if<Start>(&decision);
  return found != nullptr ? std::optional{*found} : std::nullopt;
}

bool complete(MembershipPlan& membership, Time now) { return start(membership, now).has_value(); }

/// Until when it waits.
std::optional<Time> waits(MembershipPlan& membership, Time now) {
  const Decision decision = membership.decide(now);
  const auto* wait = std::get_if<WaitUntil>(&decision);
  return wait != nullptr && wait->until ? std::optional{wait->until->when()} : std::nullopt;
}

std::optional<End::Why> end(MembershipPlan& membership, Time now) {
  const Decision decision = membership.decide(now);
  const auto* found = std::get_if<End>(&decision);
  return found != nullptr ? std::optional{found->why} : std::nullopt;
}

std::vector<std::string> hosts(const std::optional<Start>& started) {
  std::vector<std::string> names;
  if (!started) return names;
  for (const Member& member : started->roster.nodes) names.push_back(member.hello.host);
  return names;
}

/// A job of the nodes 'a', 'b', ... whose agents have these numbers, just started.
MembershipPlan running(MembershipRules rules, const std::string& nodes) {
  rules.last_call = 0s;
  MembershipPlan membership{std::move(rules), kStart};
  for (const char name : nodes) EXPECT_EQ(membership.join(name, hello(std::string(1, name)), kStart), "");
  EXPECT_TRUE(complete(membership, kStart));
  return membership;
}

MembershipRules open_rules(int min_nodes, int max_nodes) {
  MembershipRules open = rules(min_nodes, max_nodes);
  open.replaceable = true;
  return open;
}

TEST(MembershipPlanTest, IsCompleteAtOnceWithAllNodes) {
  MembershipPlan membership{rules(1, 2), kStart};
  EXPECT_EQ(membership.join(0, hello("a"), kStart), "");
  EXPECT_FALSE(complete(membership, kStart));
  EXPECT_EQ(membership.join(1, hello("b"), kStart), "");
  EXPECT_TRUE(complete(membership, kStart));
}

TEST(MembershipPlanTest, TheLastNodesOfTheListAreSpares) {
  MembershipRules fixed = rules(2, 2);
  fixed.spares = 1;
  MembershipPlan membership{fixed, kStart};
  membership.join(0, hello("c", 2), kStart);
  membership.join(1, hello("a", 0), kStart);
  EXPECT_FALSE(complete(membership, kStart)) << "the spare is waited for, too";
  EXPECT_EQ(membership.describe(), "2 of 3 nodes have joined: a, c");
  membership.join(2, hello("b", 1), kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("a", "b"));
  EXPECT_TRUE(membership.is_spare(0));
  EXPECT_THAT(membership.join(3, hello("d", 3), kStart), HasSubstr("already has its 2 nodes and 1 spare"));
  membership.lost(2);
  membership.ended(GenerationEnd::node_failed, kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("a", "c"));
  EXPECT_EQ(membership.restarts_used(), 0);
  EXPECT_EQ(membership.join(4, hello("b", 1), kStart), "") << "a node that is back is a spare";
  membership.lost(4);
  membership.lost(1);
  membership.ended(GenerationEnd::node_failed, kStart);
  EXPECT_EQ(end(membership, kStart), End::Why::too_few_left);
}

TEST(MembershipPlanTest, OfNodesThatComeOneByOneTheLastAreSpares) {
  MembershipRules fixed = rules(2, 2);
  fixed.spares = 1;
  MembershipPlan membership{fixed, kStart};
  int agent = 0;
  for (const char* host : {"n9", "n1", "n2"}) membership.join(agent++, hello(host), kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("n1", "n9"));
  EXPECT_TRUE(membership.is_spare(2));
}

TEST(MembershipPlanTest, ASpareThatDoesNotComeIsWaitedForUntilTheLastCall) {
  MembershipRules fixed = rules(2, 2);
  fixed.spares = 2;
  MembershipPlan membership{fixed, kStart};
  for (const int agent : {0, 1}) membership.join(agent, hello(agent == 0 ? "a" : "b"), kStart);
  EXPECT_EQ(waits(membership, kStart), kStart + 30s);
  EXPECT_TRUE(membership.will_not_come());
  EXPECT_FALSE(complete(membership, kStart));
  EXPECT_TRUE(membership.will_not_come());
  EXPECT_FALSE(membership.will_not_come());
  EXPECT_TRUE(complete(membership, kStart));
}

TEST(MembershipPlanTest, WaitsTheLastCallForMoreThanTheFewest) {
  MembershipPlan membership{rules(2, 4), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart + 5s);
  EXPECT_FALSE(complete(membership, kStart + 34s));
  EXPECT_EQ(waits(membership, kStart + 34s), kStart + 35s);
  EXPECT_TRUE(complete(membership, kStart + 35s));
}

TEST(MembershipPlanTest, TheLastCallBeginsAnewWhenANodeLeaves) {
  MembershipPlan membership{rules(2, 3), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart);
  EXPECT_TRUE(membership.lost(1));
  EXPECT_FALSE(membership.lost(1));
  EXPECT_FALSE(complete(membership, kStart + 60s));
  membership.join(2, hello("c"), kStart + 60s);
  EXPECT_FALSE(complete(membership, kStart + 89s));
  EXPECT_TRUE(complete(membership, kStart + 90s));
}

TEST(MembershipPlanTest, FailsWhenTooFewCameInTime) {
  MembershipPlan membership{rules(2, 2), kStart};
  membership.join(0, hello("a"), kStart);
  EXPECT_EQ(waits(membership, kStart + 599s), kStart + 600s);
  EXPECT_EQ(end(membership, kStart + 600s), End::Why::not_enough_came);
  EXPECT_EQ(membership.describe(), "1 of 2 nodes has joined: a");
}

TEST(MembershipPlanTest, FollowsTheOrderThatNodesSay) {
  MembershipPlan membership{rules(3, 3), kStart};
  membership.join(0, hello("n1", 2), kStart);
  membership.join(1, hello("n9", 0), kStart);
  membership.join(2, hello("n5", 1), kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("n9", "n5", "n1"));
}

TEST(MembershipPlanTest, ComparesNumbersInNamesAsNumbers) {
  MembershipPlan membership{rules(3, 3), kStart};
  membership.join(0, hello("node10"), kStart);
  membership.join(1, hello("node9"), kStart);
  membership.join(2, hello("node1"), kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("node1", "node9", "node10"));
}

TEST(MembershipPlanTest, RefusesWhatDoesNotFit) {
  MembershipPlan membership{rules(2, 2), kStart};
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

TEST(MembershipPlanTest, AcceptsAnotherProgramInAnotherRoleAndInAnotherFolder) {
  MembershipPlan membership{rules(3, 3), kStart};
  membership.join(0, hello("a"), kStart);
  auto other = hello("b");
  other.program = "eval.py";
  other.role = "evaluator";
  EXPECT_EQ(membership.join(1, other, kStart), "");
  other = hello("c");
  other.program = "/scratch/c/train.py";
  EXPECT_EQ(membership.join(2, other, kStart), "");
}

TEST(MembershipPlanTest, CanDoWithoutANodeThatWillNeverCome) {
  MembershipPlan membership{rules(2, 3), kStart};
  membership.join(0, hello("a"), kStart);
  membership.join(1, hello("b"), kStart);
  EXPECT_TRUE(membership.will_not_come());
  EXPECT_TRUE(complete(membership, kStart));
  EXPECT_FALSE(membership.will_not_come());
}

TEST(MembershipPlanTest, AfterALossTheOthersGoOnAtOnceInTheirOrderAndSpendNoRestart) {
  MembershipPlan membership = running(rules(2, 4), "abcd");
  membership.lost('b');
  EXPECT_EQ(waits(membership, kStart + 100s), std::nullopt) << "ranks are still running";
  membership.ended(GenerationEnd::node_failed, kStart + 100s);
  const auto second = start(membership, kStart + 100s);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->roster.generation, 1);
  EXPECT_THAT(hosts(second), ElementsAre("a", "c", "d"));
  EXPECT_EQ(second->change.before, 4);
  EXPECT_EQ(second->change.survivors, 3);
  EXPECT_FALSE(second->change.spends_restart);
  EXPECT_EQ(membership.restarts_used(), 0);
}

TEST(MembershipPlanTest, AFailedRankSpendsARestart) {
  MembershipRules two = rules(1, 2);
  two.max_restarts = 1;
  MembershipPlan membership = running(two, "ab");
  membership.ended(GenerationEnd::rank_failed, kStart + 1s);
  const auto second = start(membership, kStart + 1s);
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->change.spends_restart);
  EXPECT_EQ(membership.restarts_used(), 1);
  EXPECT_TRUE(membership.may_follow(GenerationEnd::node_failed, kStart + 2s));
  EXPECT_FALSE(membership.may_follow(GenerationEnd::rank_failed, kStart + 2s));
  membership.ended(GenerationEnd::rank_failed, kStart + 2s);
  EXPECT_EQ(end(membership, kStart + 2s), End::Why::nothing_follows);
}

TEST(MembershipPlanTest, InAStaticJobALostProcessSpendsARestartAndALostNodeEndsTheJob) {
  MembershipRules two = rules(2, 2);
  two.max_restarts = 2;
  MembershipPlan membership = running(two, "ab");
  membership.ended(GenerationEnd::node_failed, kStart + 1s);
  EXPECT_TRUE(complete(membership, kStart + 1s));
  EXPECT_EQ(membership.restarts_used(), 1);
  membership.lost('a');
  membership.ended(GenerationEnd::node_failed, kStart + 2s);
  EXPECT_EQ(end(membership, kStart + 2s), End::Why::too_few_left);
}

TEST(MembershipPlanTest, BelowTheMinimumItWaitsForAnotherWhichTakesTheLostNodesPlace) {
  MembershipPlan membership = running(open_rules(3, 4), "abc");
  membership.lost('b');
  membership.ended(GenerationEnd::node_failed, kStart + 100s);
  EXPECT_EQ(waits(membership, kStart + 100s), kStart + 700s);
  EXPECT_EQ(membership.join('x', hello("x"), kStart + 200s), "");
  const auto second = start(membership, kStart + 200s);
  EXPECT_THAT(hosts(second), ElementsAre("a", "x", "c"));
  EXPECT_THAT(second->change.joined, ElementsAre("x"));
  EXPECT_EQ(second->change.survivors, 2);
}

TEST(MembershipPlanTest, WhereNoOtherComesTheJobEnds) {
  MembershipPlan membership = running(open_rules(2, 4), "ab");
  membership.lost('b');
  membership.ended(GenerationEnd::node_failed, kStart + 100s);
  membership.lost('a');
  EXPECT_EQ(waits(membership, kStart + 699s), kStart + 700s);
  EXPECT_EQ(end(membership, kStart + 700s), End::Why::no_other_came);
  MembershipPlan allocation = running(rules(2, 4), "ab");
  allocation.lost('b');
  allocation.ended(GenerationEnd::node_failed, kStart + 100s);
  EXPECT_EQ(end(allocation, kStart + 100s), End::Why::too_few_left) << "nobody can come";
}

TEST(MembershipPlanTest, NodesThatAreLostAgainAndAgainEndTheJob) {
  MembershipPlan membership = running(rules(1, 9), "abcdefghi");
  Time now = kStart;
  const auto lose = [&](char node, std::chrono::seconds after) {
    now += after;
    membership.lost(node);
    const bool more = membership.may_follow(GenerationEnd::node_failed, now);
    membership.ended(GenerationEnd::node_failed, now);
    EXPECT_EQ(complete(membership, now), more);
    return more;
  };
  EXPECT_TRUE(lose('a', 59s));
  EXPECT_TRUE(lose('b', 59s));
  EXPECT_TRUE(lose('c', 60s)) << "this generation lived";
  EXPECT_TRUE(lose('d', 1s));
  EXPECT_TRUE(lose('e', 1s));
  EXPECT_FALSE(lose('f', 1s));
  EXPECT_EQ(end(membership, now), End::Why::crash_loop);
  MembershipRules patient = rules(1, 9);
  patient.crash_loop.generations = 0;
  membership = running(patient, "abcdefghi");
  for (const char node : {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}) EXPECT_TRUE(lose(node, 1s));
}

/// What it announces: "+" and hosts that join, "-" and those that leave.
std::vector<std::string> announced(MembershipPlan& membership, Time now) {
  const Decision decision = membership.decide(now);
  const auto* change = std::get_if<Announce>(&decision);
  std::vector<std::string> texts;
  if (change == nullptr) return texts;
  for (const std::string& host : change->joining) texts.push_back("+" + host);
  for (const std::string& host : change->leaving) texts.push_back("-" + host);
  return texts;
}

TEST(MembershipPlanTest, NodesThatJoinARunningJobAreTakenInTogether) {
  MembershipPlan membership = running(open_rules(1, 5), "ab");
  const Time now = kStart + 100s;
  EXPECT_EQ(membership.join('x', hello("x"), now), "");
  EXPECT_EQ(waits(membership, now), now + 2s);
  EXPECT_EQ(membership.join('0', hello("0"), now + 1s), "");
  EXPECT_EQ(waits(membership, now + 2s), now + 3s);
  EXPECT_THAT(announced(membership, now + 3s), ElementsAre("+x", "+0"));
  EXPECT_EQ(waits(membership, now + 4s), std::nullopt) << "the ranks are ending";
  membership.ended(GenerationEnd::resized, now + 5s);
  const auto second = start(membership, now + 5s);
  EXPECT_THAT(hosts(second), ElementsAre("a", "b", "0", "x"));
  EXPECT_THAT(second->change.joined, ElementsAre("0", "x"));
  EXPECT_EQ(second->change.survivors, 2);
  EXPECT_FALSE(second->change.spends_restart);
}

TEST(MembershipPlanTest, ThoseWhoComeOneByOneAreNotWaitedForLongerThanTenSeconds) {
  MembershipPlan membership = running(open_rules(1, 99), "a");
  Time now = kStart + 100s;
  for (int agent = 1000; agent < 1009; ++agent, now += 1s) {
    membership.join(agent, hello("n" + std::to_string(agent)), now);
    EXPECT_THAT(announced(membership, now), testing::IsEmpty());
  }
  membership.join(1009, hello("last"), now);
  EXPECT_EQ(waits(membership, now), kStart + 110s);
  EXPECT_EQ(announced(membership, kStart + 110s).size(), 10U);
}

TEST(MembershipPlanTest, AFullJobKeepsASpareWhichTakesTheLostNodesPlace) {
  MembershipPlan membership = running(open_rules(1, 2), "ab");
  for (const char name : {'x', 'y'}) EXPECT_EQ(membership.join(name, hello(std::string(1, name)), kStart + 100s), "");
  EXPECT_THAT(membership.join('z', hello("z"), kStart + 100s), HasSubstr("2 nodes and as many spares"));
  EXPECT_TRUE(membership.is_spare('x'));
  EXPECT_THAT(membership.waiting(), ElementsAre('x', 'y'));
  EXPECT_EQ(waits(membership, kStart + 200s), std::nullopt);
  membership.lost('a');
  membership.ended(GenerationEnd::node_failed, kStart + 200s);
  EXPECT_THAT(hosts(start(membership, kStart + 200s)), ElementsAre("x", "b"));
  EXPECT_THAT(membership.waiting(), ElementsAre('y'));
}

TEST(MembershipPlanTest, AMemberThatLeavesIsReleasedOnceItsRanksHaveEnded) {
  MembershipPlan membership = running(open_rules(2, 3), "abc");
  EXPECT_TRUE(membership.may_leave('b'));
  membership.leave('b');
  EXPECT_THAT(announced(membership, kStart + 1s), ElementsAre("-b"));
  membership.ended(GenerationEnd::resized, kStart + 2s);
  const Decision decision = membership.decide(kStart + 2s);
  ASSERT_TRUE(std::holds_alternative<Release>(decision));
  EXPECT_EQ(std::get<Release>(decision).agent, 'b');
  const auto second = start(membership, kStart + 2s);
  EXPECT_THAT(hosts(second), ElementsAre("a", "c"));
  EXPECT_THAT(second->change.left, ElementsAre("b"));
  membership.leave('c');
  membership.ended(GenerationEnd::resized, kStart + 3s);
  EXPECT_TRUE(std::holds_alternative<Release>(membership.decide(kStart + 3s)));
  EXPECT_EQ(waits(membership, kStart + 3s), kStart + 603s) << "below the minimum it waits for another";
}

TEST(MembershipPlanTest, WhoMayLeave) {
  MembershipPlan fixed = running(rules(2, 2), "ab");
  EXPECT_FALSE(fixed.may_leave('a'));
  MembershipPlan allocation = running(rules(2, 3), "abc");
  EXPECT_TRUE(allocation.may_leave('a'));
  EXPECT_FALSE(allocation.may_leave('x')) << "unknown";
  EXPECT_FALSE(allocation.may_leave({'a', 'b'})) << "one of two might";
  EXPECT_FALSE(allocation.may_leave({'a', 'x'}));
  allocation.leave('a');
  EXPECT_TRUE(allocation.may_leave('a')) << "it does";
  EXPECT_FALSE(allocation.may_leave('b')) << "too few would be left, and no other can come";
}

TEST(MembershipPlanTest, AJobThatIsAboutToEndTakesInNobody) {
  MembershipPlan membership = running(open_rules(1, 3), "ab");
  membership.rank_succeeded();
  EXPECT_EQ(membership.join('x', hello("x"), kStart + 1s), "");
  EXPECT_EQ(waits(membership, kStart + 100s), std::nullopt);
  membership.ended(GenerationEnd::node_failed, kStart + 101s);
  EXPECT_THAT(hosts(start(membership, kStart + 101s)), ElementsAre("a", "b", "x"));
}

TEST(MembershipPlanTest, ANodeWithoutRanksDoesNotJoinARunningJob) {
  MembershipPlan membership = running(open_rules(1, 3), "ab");
  auto empty = hello("x");
  empty.nproc = 0;
  EXPECT_EQ(membership.join('x', empty, kStart + 1s), "x cannot start ranks");
}

TEST(MembershipPlanTest, WhoComesBackIsAnotherMember) {
  MembershipPlan membership = running(open_rules(2, 2 + 1), "ab");
  membership.lost('a');
  membership.ended(GenerationEnd::node_failed, kStart);
  membership.join('A', hello("a"), kStart);
  const auto second = start(membership, kStart);
  ASSERT_TRUE(second);
  EXPECT_THAT(hosts(second), ElementsAre("a", "b"));
  EXPECT_EQ(second->roster.nodes[0].id, 2);
  EXPECT_EQ(second->roster.nodes[1].id, 1);
}

TEST(MembershipPlanTest, RefusesMoreThanTheMost) {
  MembershipPlan membership{rules(1, 1), kStart};
  membership.join(0, hello("a"), kStart);
  EXPECT_THAT(membership.join(1, hello("b"), kStart), HasSubstr("already has its 1 node"));
}

TEST(MembershipPlanTest, RanksThatAskForAnotherStartAgainAndAgainAreACrashLoop) {
  MembershipRules two = rules(1, 2);
  MembershipPlan membership = running(two, "ab");
  Time now = kStart;
  for (int generation = 1; generation < 3; ++generation) {
    membership.ended(GenerationEnd::requested, now += 5s);
    EXPECT_TRUE(complete(membership, now)) << generation;
  }
  EXPECT_TRUE(membership.may_follow(GenerationEnd::resized, now + 5s)) << "a change of nodes is none";
  EXPECT_TRUE(membership.may_follow(GenerationEnd::requested, now + 60s)) << "it has made progress";
  EXPECT_FALSE(membership.may_follow(GenerationEnd::requested, now + 5s));
  membership.ended(GenerationEnd::requested, now + 5s);
  EXPECT_EQ(end(membership, now + 5s), End::Why::crash_loop);
  EXPECT_EQ(membership.restarts_used(), 0);
}

TEST(MembershipPlanTest, AHostThatIsLostAgainAndAgainWaitsLongerEachTime) {
  MembershipRules open = open_rules(1, 3);
  open.crash_loop = {.generations = 100, .within = 60s};
  MembershipPlan membership = running(open, "ab");
  Time now = kStart;
  int agent = 'b';
  const auto lose_and_join = [&] {
    membership.lost(agent++);
    membership.ended(GenerationEnd::node_failed, now);
    EXPECT_TRUE(complete(membership, now)) << "the others go on at once";
    EXPECT_EQ(membership.join(agent, hello("b"), now), "");
    return std::chrono::duration_cast<std::chrono::seconds>(membership.rest_of(agent, now)).count();
  };
  const auto come_back = [&](Time::duration after) {
    now += after;
    EXPECT_THAT(std::get<Announce>(membership.decide(now)).joining, ElementsAre("b"));
    membership.ended(GenerationEnd::resized, now);
    EXPECT_THAT(hosts(start(membership, now)), ElementsAre("a", "b"));
  };
  EXPECT_EQ(lose_and_join(), 0);
  come_back(2s);
  EXPECT_EQ(lose_and_join(), 10);
  EXPECT_EQ(waits(membership, now + 2s), now + 10s);
  come_back(10s);
  EXPECT_EQ(lose_and_join(), 20);
  come_back(20s);
  for (const int expected : {40, 80, 160, 320, 600}) {
    EXPECT_EQ(lose_and_join(), expected);
    come_back(std::chrono::seconds(expected));
  }
  now += 601s;
  EXPECT_EQ(lose_and_join(), 0) << "it has run for long";
}

TEST(MembershipPlanTest, BelowTheMinimumAHostThatRestsIsWaitedFor) {
  MembershipRules open = open_rules(2, 3);
  MembershipPlan membership = running(open, "ab");
  int agent = 'b';
  Time now = kStart;
  for (int loss = 0; loss < 2; ++loss) {
    membership.lost(agent++);
    membership.ended(GenerationEnd::node_failed, now += 70s);  // no crash loop
    EXPECT_EQ(membership.join(agent, hello("b"), now), "");
    if (loss > 0) break;
    EXPECT_THAT(hosts(start(membership, now)), ElementsAre("a", "b"));
  }
  EXPECT_EQ(waits(membership, now), now + 10s);
  EXPECT_THAT(hosts(start(membership, now + 10s)), ElementsAre("a", "b"));
  membership.lost(agent);
  membership.ended(GenerationEnd::node_failed, now + 80s);
  EXPECT_EQ(membership.join(agent + 1, hello("c"), now + 80s), "") << "another host need not wait";
  EXPECT_THAT(hosts(start(membership, now + 80s)), ElementsAre("a", "c"));
}

TEST(MembershipPlanTest, SettingsThatContradictTheLeadersAreRefused) {
  MembershipRules two = rules(2, 2);
  two.settings = {"--on-resize=stop", "--resize-grace=120"};
  MembershipPlan membership{two, kStart};
  auto other = hello("b");
  other.settings = {"--on-resize=finish"};
  EXPECT_EQ(membership.join(1, other, kStart),
            "b has --on-resize=finish, but the ddprun that leads has --on-resize=stop: give the same, or give it to "
            "that one alone");
  other.settings = {"--resize-grace=120"};
  EXPECT_EQ(membership.join(1, other, kStart), "");
}

MembershipRules allocation_rules(int min_nodes, int max_nodes, int absent) {
  MembershipRules joinable = rules(min_nodes, max_nodes);
  joinable.absent = absent;
  joinable.allocation = "7";
  joinable.joinable = true;
  return joinable;
}

control::Hello of_allocation(const std::string& allocation, const std::string& host, std::int64_t order) {
  control::Hello joining = hello(host, order);
  joining.allocation = allocation;
  return joining;
}

TEST(MembershipPlanTest, WhereOtherAllocationsCannotJoinNoAgentIsAGuest) {
  MembershipPlan fixed{rules(1, 1), kStart};
  fixed.join(0, of_allocation("7", "n0", 0), kStart);
  EXPECT_FALSE(fixed.is_guest(0));
}

TEST(MembershipPlanTest, TheFirstRosterDoesNotWaitForOtherAllocationsWhichJoinBehindIt) {
  MembershipPlan membership{allocation_rules(1, 4, 2), kStart};
  membership.join(0, of_allocation("7", "n0", 0), kStart);
  EXPECT_EQ(membership.describe(), "1 of 1 to 2 nodes has joined: n0");
  EXPECT_FALSE(complete(membership, kStart));
  membership.join(1, of_allocation("7", "n1", 1), kStart);
  EXPECT_THAT(hosts(start(membership, kStart)), ElementsAre("n0", "n1"));
  EXPECT_EQ(membership.join(2, of_allocation("10", "m1", 0), kStart), "") << "its own node 0";
  EXPECT_EQ(membership.join(3, of_allocation("9", "m9", 0), kStart), "");
  EXPECT_THAT(membership.join(4, of_allocation("9", "m8", 0), kStart), HasSubstr("both say that they are node 0"));
  EXPECT_TRUE(membership.is_guest(2));
  EXPECT_FALSE(membership.is_guest(1));
  EXPECT_THAT(membership.agents_of("10"), ElementsAre(2));
  membership.ended(GenerationEnd::resized, kStart + 2s);
  EXPECT_THAT(hosts(start(membership, kStart + 2s)), ElementsAre("n0", "n1", "m9", "m1"));
  for (int agent = 5; agent < 9; ++agent)
    EXPECT_EQ(membership.join(agent, of_allocation("11", "s", agent), kStart), "") << "a spare";
  EXPECT_EQ(membership.why_full(), "the job already has its 4 nodes and as many spares");
}

TEST(MembershipPlanTest, BelowTheMinimumAJobDoesNotWaitForOtherAllocations) {
  MembershipPlan membership{allocation_rules(2, 4, 2), kStart};
  for (const int agent : {0, 1}) membership.join(agent, of_allocation("7", "n", agent), kStart);
  EXPECT_TRUE(complete(membership, kStart));
  EXPECT_FALSE(membership.may_leave(1));
  membership.lost(1);
  membership.ended(GenerationEnd::node_failed, kStart + 100s);
  EXPECT_EQ(end(membership, kStart + 100s), End::Why::too_few_left);
}

MembershipRules expanding(int min_nodes, int max_nodes) {
  MembershipRules wanted = rules(min_nodes, max_nodes);
  wanted.expands = wanted.joinable = true;
  wanted.allocation = "7";
  return wanted;
}

TEST(MembershipPlanTest, LostNodesAreMissingUntilOthersTakeTheirSlots) {
  MembershipPlan membership = running(expanding(2, 2), "ab");
  EXPECT_EQ(membership.missing(), 0);
  membership.lost('a');
  membership.ended(GenerationEnd::node_failed, kStart + 100s);
  EXPECT_EQ(membership.missing(), 1);
  EXPECT_EQ(waits(membership, kStart + 100s), kStart + 700s) << "though --nnodes is fixed";
  membership.expect_more(false);
  EXPECT_EQ(end(membership, kStart + 100s), End::Why::too_few_left) << "Slurm has refused it";
  membership.expect_more(true);
  EXPECT_EQ(membership.join(1, hello("c"), kStart + 101s), "");
  EXPECT_EQ(membership.missing(), 0);
  EXPECT_THAT(hosts(start(membership, kStart + 101s)), ElementsAre("c", "b"));
}

TEST(MembershipPlanTest, NodesOfGrowToAndResizeAreMissingButNotThoseThatLeaveByWish) {
  MembershipRules wanted = expanding(1, 4);
  wanted.grow_to = 3;
  wanted.absent = 2;
  MembershipPlan membership = running(wanted, "ab");
  EXPECT_EQ(membership.missing(), 1);
  membership.rank_succeeded();
  EXPECT_EQ(membership.missing(), 0) << "the job is about to end";
  membership.ended(GenerationEnd::requested, kStart + 100s);
  EXPECT_TRUE(complete(membership, kStart + 100s));
  EXPECT_TRUE(membership.resize({.nodes = 4, .by = "a user"}, kStart + 100s).taken);
  EXPECT_EQ(membership.missing(), 2);
  membership.leave('b', "a user");
  membership.leave('b', "a user");
  EXPECT_EQ(membership.missing(), 2) << "3 are wanted now";
  EXPECT_TRUE(membership.resize({.nodes = 1, .by = "a user"}, kStart + 100s).taken);
  EXPECT_EQ(membership.missing(), 0);
}

}  // namespace
}  // namespace ddp::launcher
