// The thread that drives operations that no thread waits for: one for all groups, asleep when there is nothing to do.
#include "collectives/progress_thread.hpp"
#include "collectives/wait_ladder.hpp"
#include "support/sanitized.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using collectives::ProgressThread;

/// Sleeps until it holds; false after a long time.
bool eventually(const std::function<bool()>& holds) {
  const Deadline deadline = ddp::test::soon();
  while (!holds() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
  return holds();
}

std::ptrdiff_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Progress, CarriesOnWhatNobodyWaitsFor) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  ProcessGroup group = ddp::test::inline_group(50, 1, view);
  for (int i = 0; i < 20; ++i) static_cast<void>(group.barrier());
  EXPECT_TRUE(eventually([&] { return view->ended == 20; }));
}

TEST(Progress, OneThreadServesAllGroupsAndEndsWithTheLast) {
  const auto before = threads();
  {
    std::vector<std::shared_ptr<ddp::test::InlineBackend::View>> views;
    std::vector<ProcessGroup> groups;
    for (int i = 0; i < 10; ++i) {
      views.push_back(std::make_shared<ddp::test::InlineBackend::View>());
      groups.push_back(ddp::test::inline_group(20, 1, views.back()));
    }
    for (ProcessGroup& group : groups) static_cast<void>(group.barrier());
    EXPECT_LE(threads(), before + 2) << "one that carries on, and the clock's";
    for (const auto& view : views) EXPECT_TRUE(eventually([&] { return view->ended == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return threads() <= before; }));  // other threads may have ended, too
}

TEST(Progress, SleepsDeeplyWhenNoGroupIsUsedAndWakesWhenOneIs) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  auto before = ProgressThread::instance().counts();
  ProcessGroup group = ddp::test::inline_group(5, 1, view);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(eventually([&] { return ProgressThread::instance().counts().deep_sleeps > before.deep_sleeps; }));
    before = ProgressThread::instance().counts();
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_EQ(ProgressThread::instance().counts().looks, before.looks);
    static_cast<void>(group.barrier());
    EXPECT_TRUE(eventually([&] { return view->ended == round; }));
  }
}

TEST(Progress, KeepsAwayFromWhatACallerDrives) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  ProcessGroup group = ddp::test::inline_group(100, 1, view);
  for (int i = 0; i < 20; ++i) group.barrier().wait();
  EXPECT_EQ(view->ended, 20);
  EXPECT_FALSE(view->overlap);
}

TEST(Progress, GroupsComeAndGo) {
  for (int round = 0; round < 200; ++round) {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(round % 3, 1, view);
    const Work work = group.barrier();
    if (round % 2 == 0) work.wait();
  }
}

}  // namespace

// Many threads and operations at once: each ends once, in order, and only one thread at a time is in the backend.

namespace {

constexpr int kMany = ::ddp::test::cases(100'000);

/// Waits, polls, drops, adds callbacks, at random.
void use(ProcessGroup& group, int operations, unsigned seed, std::atomic<int>& callbacks) {
  std::mt19937 random(seed);
  std::vector<float> values(4);
  std::vector<Work> open;
  for (int i = 0; i < operations; ++i) {
    const unsigned choice = random() % 16;
    const Work work = choice < 12 ? group.all_reduce(values) : group.send(values, 1, choice);
    switch (choice % 6) {
      case 0:
      case 1: work.wait(); break;
      case 2: open.push_back(work); break;
      case 3: break;  // dropped
      case 4: work.on_finish([&](const Work&) { ++callbacks; }); break;
      default: static_cast<void>(work.done());
    }
    if (open.size() > 50) {
      for (const Work& each : open) each.wait();
      open.clear();
    }
  }
  group.barrier().wait();
}

struct Case {
  int polls;
  int concurrent;
};

class Threads : public testing::TestWithParam<Case> {};

TEST_P(Threads, MixedOperationsOfOneThread) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  std::atomic<int> callbacks{0};
  {
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    use(group, kMany, 1, callbacks);
  }
  EXPECT_EQ(view->ended, kMany + 1);
  EXPECT_EQ(view->posted, 0);
  EXPECT_FALSE(view->overlap);
  EXPECT_GT(callbacks, kMany / 16);
}

TEST_P(Threads, TwoOnOneGroup) {
  const auto view = std::make_shared<ddp::test::InlineBackend::View>();
  std::atomic<int> callbacks{0};
  {
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    ddp::test::run_ranks(2, [&](int thread) { use(group, kMany / 4, static_cast<unsigned>(thread), callbacks); });
    EXPECT_FALSE(view->overlap);
  }
  EXPECT_FALSE(view->out_of_order) << "they are numbered in the order in which they start";
  EXPECT_EQ(view->ended, 2 * (kMany / 4 + 1));
}

TEST_P(Threads, TwoOnTwoGroups) {
  std::atomic<int> callbacks{0};
  ddp::test::run_ranks(2, [&](int thread) {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent, view);
    use(group, kMany / 4, static_cast<unsigned>(thread), callbacks);
    EXPECT_FALSE(view->overlap);
  });
}

TEST_P(Threads, SeveralWaitForTheSameOperations) {
  ProcessGroup group = ddp::test::inline_group(GetParam().polls, GetParam().concurrent);
  for (int round = 0; round < 50; ++round) {
    const Work first = group.barrier();
    const Work second = group.barrier();
    ddp::test::run_ranks(4, [&](int thread) { (thread % 2 == 0 ? first : second).wait(); });
    EXPECT_TRUE(first.done() && second.done());
  }
}

TEST_P(Threads, ClosingEndsEveryWaitForOperationsUnderWay) {
  for (int round = 0; round < 20; ++round) {
    ProcessGroup group = ddp::test::inline_group(1 << 30, GetParam().concurrent);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(group.barrier());
    std::atomic<int> aborted{0};
    std::atomic<int> waiting{0};
    std::vector<std::thread> waiters;
    for (const Work& work : works) {
      waiters.emplace_back([&, work] {
        ++waiting;
        const auto error = ddp::test::error_of([&] { work.wait(); });
        aborted += error && error->code() == ErrorCode::aborted ? 1 : 0;
      });
    }
    while (waiting < 10) std::this_thread::yield();
    { const ProcessGroup last = std::exchange(group, ddp::test::inline_group(0)); }
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(aborted, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Threads, testing::Values(Case{0, 1}, Case{1, 1}, Case{3, 4}),
                         [](const testing::TestParamInfo<Case>& instance) {
                           return "polls_" + std::to_string(instance.param.polls) + "_concurrent_" +
                                  std::to_string(instance.param.concurrent);
                         });

TEST(Concurrency, AsManyCollectivesArePostedAsTheBackendTakes) {
  for (const int concurrent : {1, 3, 100}) {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(200, concurrent, view);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(group.barrier());
    for (const Work& work : works) work.wait();
    EXPECT_EQ(view->most_posted, std::min(concurrent, 10));
  }
}

}  // namespace

}  // namespace ddp

namespace ddp::collectives {

// Waiting: spins only with a processor of its own, then yields, then rests longer and longer.

namespace {

using std::chrono::microseconds;

/// A ladder on a machine on which nothing else runs.
WaitLadder undisturbed(bool may_spin, microseconds first_rest = WaitLadder::kFirstRest, YieldBudget* budget = nullptr) {
  static Crowd nobody{std::chrono::hours(1)};
  return WaitLadder(may_spin, first_rest, budget, &nobody);
}

/// Pauses until the first rest, and counts them.
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
      WaitLadder ladder = undisturbed(may_spin);
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
    WaitLadder ladder = undisturbed(false, WaitLadder::kLongestRest);
    microseconds rest{};
    pauses_until_rest(ladder, rest);
    EXPECT_EQ(rest, WaitLadder::kLongestRest);
    ladder.rested();
    return ladder.pause() == WaitLadder::kLongestRest;
  }));
}

TEST(WaitLadder, LearnsWhetherYieldingHelps) {
  YieldBudget budget;
  WaitLadder ladder = undisturbed(false, WaitLadder::kFirstRest, &budget);
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
  // one vain wait among ten takes back less than the others have added
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
  WaitLadder ladder = undisturbed(true, WaitLadder::kFirstRest, &budget);
  const unsigned before = budget.yields();
  const auto begin = WaitLadder::Clock::now();
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  EXPECT_GE(WaitLadder::Clock::now() - begin, WaitLadder::kSpin + WaitLadder::kYield);
  EXPECT_EQ(budget.yields(), before);
}

TEST(WaitLadder, DoesNotRestAfterAPollThatHasWorked) {
  WaitLadder ladder = undisturbed(false);
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  ladder.rested();
  std::this_thread::sleep_for(WaitLadder::kWork);  // a long poll
  EXPECT_EQ(ladder.pause(), microseconds::zero());
  pauses_until_rest(ladder, rest);
  EXPECT_EQ(rest, WaitLadder::kFirstRest);
}

TEST(WaitLadder, BeginsAnewAfterAReset) {
  WaitLadder ladder = undisturbed(true);
  microseconds rest{};
  pauses_until_rest(ladder, rest);
  ladder.pause();
  ladder.reset();
  EXPECT_GT(pauses_until_rest(ladder, rest), 1);
  EXPECT_EQ(rest, WaitLadder::kFirstRest);
}

TEST(WaitLadder, LooksAtTheClockRarely) {
  WaitLadder ladder = undisturbed(true);
  unsigned pauses = 0;
  while (!ladder.looked()) {
    ladder.pause();
    ++pauses;
  }
  EXPECT_EQ(pauses, WaitLadder::kSpinsPerLook);
  EXPECT_FALSE(ladder.looked());
  // even with constant progress
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
