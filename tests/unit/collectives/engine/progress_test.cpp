// The thread that carries on what nobody waits for: one for all groups, that sleeps when there is nothing to do.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "collectives/progress_thread.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using collectives::ProgressThread;
using ddp::test::soon;
using std::chrono::milliseconds;

/// Sleeps until it holds; false after a long time.
bool eventually(const std::function<bool()>& holds) {
  const Deadline deadline = soon();
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
  EXPECT_TRUE(eventually([&] { return threads() <= before; }));  // others may have ended, too
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
}  // namespace ddp
