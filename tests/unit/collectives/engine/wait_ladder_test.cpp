// Waiting: spinning only with a processor of one's own, then yielding, then longer and longer rests.
#include "collectives/wait_ladder.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "collectives/processor_share.hpp"

namespace ddp::collectives {
namespace {

using std::chrono::microseconds;

/// Pauses until the first rest, and how many there were.
int pauses_until_rest(WaitLadder& ladder, microseconds& rest) {
  int pauses = 0;
  while ((rest = ladder.pause()) == microseconds::zero()) ++pauses;
  return pauses;
}

/// Whether @p check holds once in many tries: a test that loses its processor between two calls looks like a long poll.
bool holds_undisturbed(const std::function<bool()>& check) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    if (check()) return true;
  }
  return false;
}

bool rests_grow(WaitLadder& ladder, microseconds rest) {
  for (int i = 0; i < 20; ++i) {
    ladder.rested();
    const microseconds next = ladder.pause();
    if (next != std::min(rest * 2, WaitLadder::kLongestRest)) return false;
    rest = next;
  }
  return rest == WaitLadder::kLongestRest;
}

TEST(WaitLadder, RestsGrowToTheirLimit) {
  for (const bool may_spin : {true, false}) {
    EXPECT_TRUE(holds_undisturbed([&] {
      WaitLadder ladder(may_spin);
      const auto begin = WaitLadder::Clock::now();
      microseconds rest{};
      EXPECT_GT(pauses_until_rest(ladder, rest), 1);
      EXPECT_GE(WaitLadder::Clock::now() - begin, WaitLadder::kYield);
      EXPECT_EQ(rest, WaitLadder::kFirstRest);
      return rests_grow(ladder, rest);
    }));
  }
}

TEST(WaitLadder, RestsLongFromTheFirstWhereRestsAreEnded) {
  EXPECT_TRUE(holds_undisturbed([] {
    WaitLadder ladder(false, WaitLadder::kLongestRest);
    microseconds rest{};
    pauses_until_rest(ladder, rest);
    EXPECT_EQ(rest, WaitLadder::kLongestRest);
    ladder.rested();
    return ladder.pause() == WaitLadder::kLongestRest;
  }));
}

TEST(WaitLadder, LearnsWhetherYieldingHelps) {
  YieldBudget budget;
  WaitLadder ladder(false, WaitLadder::kFirstRest, &budget);
  microseconds rest{};
  const auto wait_in_vain = [&] {
    const int pauses = pauses_until_rest(ladder, rest);
    ladder.reset();
    return pauses;
  };
  const auto wait_for_one_yield = [&] {
    ladder.pause();
    ladder.reset();
  };
  for (int wait = 0; wait < 20; ++wait) wait_in_vain();
  EXPECT_EQ(budget.yields(), YieldBudget::kLeast);
  // without a look at the clock
  EXPECT_TRUE(holds_undisturbed([&] { return wait_in_vain() == static_cast<int>(YieldBudget::kLeast); }));
  // one wait in vain among ten takes back less than the others have added
  for (int round = 0; round < 100; ++round) {
    wait_in_vain();
    for (int wait = 0; wait < 10; ++wait) wait_for_one_yield();
  }
  EXPECT_GE(budget.yields(), YieldBudget::kLeast * 2);
  for (int wait = 0; wait < 1000; ++wait) wait_for_one_yield();
  EXPECT_EQ(budget.yields(), YieldBudget::kMost);
  EXPECT_LE(wait_in_vain(), static_cast<int>(YieldBudget::kMost));
  EXPECT_LT(budget.yields(), YieldBudget::kMost);
}

TEST(WaitLadder, WhoMaySpinYieldsByTheClock) {
  YieldBudget budget;
  WaitLadder ladder(true, WaitLadder::kFirstRest, &budget);
  const unsigned before = budget.yields();
  const auto begin = WaitLadder::Clock::now();
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  EXPECT_GE(WaitLadder::Clock::now() - begin, WaitLadder::kSpin + WaitLadder::kYield);
  EXPECT_EQ(budget.yields(), before);
}

TEST(WaitLadder, DoesNotRestAfterAPollThatHasWorked) {
  WaitLadder ladder(false);
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  ladder.rested();
  std::this_thread::sleep_for(WaitLadder::kWork);  // a long poll
  EXPECT_EQ(ladder.pause(), microseconds::zero());
  pauses_until_rest(ladder, rest);
  EXPECT_EQ(rest, WaitLadder::kFirstRest);
}

TEST(WaitLadder, BeginsAnewAfterAReset) {
  WaitLadder ladder(true);
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  ladder.pause();
  ladder.reset();
  EXPECT_GT(pauses_until_rest(ladder, rest), 1);
  EXPECT_EQ(rest, WaitLadder::kFirstRest);
}

TEST(WaitLadder, LooksAtTheClockRarely) {
  WaitLadder ladder(true);
  unsigned pauses = 0;
  while (!ladder.looked()) {
    ladder.pause();
    ++pauses;
  }
  EXPECT_EQ(pauses, WaitLadder::kSpinsPerLook);
  EXPECT_FALSE(ladder.looked());
  // also where there is progress all the time
  for (pauses = 0; !ladder.looked() && pauses < 1000; ++pauses) {
    ladder.reset();
    ladder.pause();
  }
  EXPECT_LE(pauses, WaitLadder::kSpinsPerLook);
}

TEST(ProcessorShare, RanksHaveAProcessorEachIfThereAreEnough) {
  const ProcessorShare all{.in_mask = 8, .quota = 0, .on_machine = 8};
  EXPECT_TRUE(all.enough_for(8));
  EXPECT_FALSE(all.enough_for(9));
  const ProcessorShare bound{.in_mask = 1, .quota = 0, .on_machine = 8};
  EXPECT_TRUE(bound.enough_for(8));
  EXPECT_FALSE(bound.enough_for(9));
  const ProcessorShare throttled{.in_mask = 8, .quota = 2.5, .on_machine = 8};
  EXPECT_TRUE(throttled.enough_for(2));
  EXPECT_FALSE(throttled.enough_for(3));
}

TEST(ProcessorShare, IsReadOfTheSystem) {
  const ProcessorShare share = ProcessorShare::read();
  EXPECT_GE(share.in_mask, 1);
  EXPECT_GE(share.on_machine, 1);
}

}  // namespace
}  // namespace ddp::collectives
