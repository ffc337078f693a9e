// Nodes that make interpreters ready before they join (--warm-workers): the ranks of the others run on meanwhile.
#include "coordinator/membership_plan.hpp"

namespace ddp::launcher {
namespace {

using Time = MembershipPlan::Time;
const Time kWarmBegin{1000s};

struct MembershipWarm : ::testing::Test {
  /// @param agent its number
  void join(int agent, bool warms, Time now) {
    const control::Hello hello{
        .version = "1", .run_id = "run", .host = std::string(1, static_cast<char>(agent)), .nproc = 1, .warms = warms};
    ASSERT_EQ(plan_.join(agent, hello, now), "");
  }
  /// One node, 'a', of 4 that may take part.
  void begin() {
    join('a', true, kWarmBegin);
    ASSERT_TRUE(std::holds_alternative<Start>(plan_.decide(kWarmBegin))) << "the first generation waits for none";
  }
  bool announces(Time now) { return std::holds_alternative<Announce>(plan_.decide(now)); }
  std::optional<Time> waits(Time now) {
    const Decision decision = plan_.decide(now);
    const auto* wait = std::get_if<WaitUntil>(&decision);
    return wait != nullptr && wait->until ? std::optional{wait->until->when()} : std::nullopt;
  }

  MembershipPlan plan_{{.min_nodes = 1,
                        .max_nodes = 4,
                        .run_id = "run",
                        .version = "1",
                        .last_call = 0s,
                        .replaceable = true,
                        .scale_up_delay = 2s,
                        .scale_up_limit = 10s,
                        .warm_limit = 120s},
                       kWarmBegin};
};

TEST_F(MembershipWarm, RanksEndForANodeOnlyOnceItIsWarm) {
  begin();
  join('b', true, kWarmBegin + 1s);
  EXPECT_EQ(waits(kWarmBegin + 1s), kWarmBegin + 121s);
  EXPECT_EQ(waits(kWarmBegin + 60s), kWarmBegin + 121s);
  plan_.warmed('b', kWarmBegin + 60s);
  EXPECT_EQ(waits(kWarmBegin + 60s), kWarmBegin + 62s) << "others may be warm soon";
  EXPECT_TRUE(announces(kWarmBegin + 62s));
}

TEST_F(MembershipWarm, OneThatIsNeverWarmJoinsAfterTheLimit) {
  begin();
  join('b', true, kWarmBegin + 1s);
  EXPECT_FALSE(announces(kWarmBegin + 120s));
  EXPECT_TRUE(announces(kWarmBegin + 121s));
}

TEST_F(MembershipWarm, OneThatIsWarmWaitsForOthersTenSecondsAtMost) {
  begin();
  join('b', true, kWarmBegin);
  join('c', true, kWarmBegin);
  plan_.warmed('b', kWarmBegin + 5s);
  EXPECT_EQ(waits(kWarmBegin + 14s), kWarmBegin + 15s);
  plan_.warmed('c', kWarmBegin + 14s);
  EXPECT_EQ(waits(kWarmBegin + 14s), kWarmBegin + 15s);
  const Decision announced = plan_.decide(kWarmBegin + 15s);
  ASSERT_TRUE(std::holds_alternative<Announce>(announced));
  EXPECT_THAT(std::get<Announce>(announced).joining, ElementsAre("b", "c"));
}

TEST_F(MembershipWarm, OnceAllPlacesAreTakenByWarmOnesNothingIsWaitedFor) {
  begin();
  for (const int agent : {'b', 'c', 'd'}) join(agent, true, kWarmBegin);
  for (const int agent : {'b', 'c'}) plan_.warmed(agent, kWarmBegin + 3s);
  EXPECT_FALSE(announces(kWarmBegin + 3s));
  plan_.warmed('d', kWarmBegin + 3s);
  EXPECT_TRUE(announces(kWarmBegin + 3s));
}

TEST_F(MembershipWarm, AColdNodeIsTakenInAsBefore) {
  begin();
  join('b', false, kWarmBegin + 1s);
  EXPECT_EQ(waits(kWarmBegin + 1s), kWarmBegin + 3s);
  EXPECT_TRUE(announces(kWarmBegin + 3s));
}

TEST_F(MembershipWarm, AGenerationThatBeginsAnywayTakesItInWarmOrNot) {
  begin();
  join('b', true, kWarmBegin + 1s);
  EXPECT_FALSE(announces(kWarmBegin + 5s));
  plan_.ended(GenerationEnd::node_failed, kWarmBegin + 5s);
  const Decision next = plan_.decide(kWarmBegin + 5s);
  ASSERT_TRUE(std::holds_alternative<Start>(next));
  EXPECT_EQ(std::get<Start>(next).roster.nodes.size(), 2U);
}

TEST_F(MembershipWarm, OneThatIsLostMeanwhileInterruptsNothing) {
  begin();
  join('b', true, kWarmBegin + 1s);
  EXPECT_TRUE(plan_.lost('b'));
  plan_.warmed('b', kWarmBegin + 2s);
  EXPECT_EQ(waits(kWarmBegin + 200s), std::nullopt);
  EXPECT_FALSE(announces(kWarmBegin + 200s));
}

}  // namespace
}  // namespace ddp::launcher
