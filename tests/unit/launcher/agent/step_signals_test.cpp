// Ranks get each signal once, whatever processes of a step Slurm signals.
#include "agent/step_signals.hpp"

#include <csignal>

namespace ddp::launcher {
namespace {

using control::SignalRanks;
using std::chrono::hours;

const SignalRanks kPlain{.epoch = 1, .groups = true, .signal = SIGTERM};
const SignalRanks kDoubtful{.epoch = 1, .groups = true, .signal = SIGTERM, .may_have_reached_ranks = true};

TEST(StepSignals, AnOrderThatSlurmHasNothingToDoWithIsSettledAtOnce) {
  StepSignals signals{hours(1)};
  EXPECT_TRUE(signals.take_settled().empty());
  EXPECT_FALSE(signals.next_deadline());
  signals.add(kPlain);
  const auto settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_EQ(settled[0].order, kPlain);
  EXPECT_FALSE(settled[0].reached_ranks);
  EXPECT_TRUE(signals.take_settled().empty());
}

TEST(StepSignals, WhatHasComeToThisProcessHasReachedTheRanks) {
  StepSignals signals{hours(1)};
  signals.arrived(SIGTERM);
  signals.add(kDoubtful);
  auto settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_TRUE(settled[0].reached_ranks);
  signals.add(kDoubtful);
  EXPECT_TRUE(signals.take_settled().empty()) << "it came once";
  signals.arrived(SIGTERM);
  settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_TRUE(settled[0].reached_ranks) << "it came after the order";
}

// The order may come by way of a coordinator on another node, whose agent was signalled first.
TEST(StepSignals, AnOrderThatIsNotDoubtedMayFollowTheSignalToo) {
  StepSignals signals{hours(1)};
  signals.arrived(SIGTERM);
  signals.add(kPlain);
  const auto settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_TRUE(settled[0].reached_ranks);
}

TEST(StepSignals, WithoutTheSignalTheRanksGetItAfterAWhile) {
  StepSignals signals{std::chrono::milliseconds(20)};
  signals.arrived(SIGUSR1);  // another one
  signals.add(kDoubtful);
  const auto deadline = signals.next_deadline();
  ASSERT_TRUE(deadline);
  std::this_thread::sleep_until(deadline->when());
  const auto settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_EQ(settled[0].order, kDoubtful);
  EXPECT_FALSE(settled[0].reached_ranks);
  EXPECT_FALSE(signals.next_deadline());
}

TEST(StepSignals, OthersDoNotWaitForADoubtfulOne) {
  StepSignals signals{hours(1)};
  signals.add(kDoubtful);
  const SignalRanks kill{.epoch = 1, .groups = true, .signal = SIGKILL};
  signals.add(kill);
  const auto settled = signals.take_settled();
  ASSERT_EQ(settled.size(), 1U);
  EXPECT_EQ(settled[0].order, kill);
}

}  // namespace
}  // namespace ddp::launcher
