// Looking after those that a slow operation waits for, over real channels on loopback: differences and losses are found
// long before the deadline, and nobody is lost for being slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "collectives/failure_detector.hpp"
#include "unit/collectives/channel_members.hpp"

namespace ddp::collectives {
namespace {

using ddp::test::all_reduce;
using ddp::test::cause_found_by;
using ddp::test::in;
using ddp::test::Members;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Ranks = std::vector<int>;

bool always() { return true; }

TEST(FailureWatch, TheNextRankIsCompared) {
  const auto watched = [](Members& group, int rank, const Operation& operation) {
    group.detector(rank).watch(operation, always);
    return group.detector(rank).verdict();
  };
  Members group{3};
  group.call(0, all_reduce(1, 100));
  EXPECT_FALSE(watched(group, 0, all_reduce(1, 100))) << "the neighbour has not called it yet";
  group.call(1, all_reduce(1, 100));
  EXPECT_FALSE(watched(group, 0, all_reduce(1, 100)));
  group.call(2, all_reduce(1, 101));
  EXPECT_FALSE(watched(group, 0, all_reduce(1, 100))) << "its neighbour watches the next one";
  const auto verdict = watched(group, 1, all_reduce(1, 100));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->code(), ErrorCode::mismatch);
  EXPECT_THAT(verdict->what(), HasSubstr("ranks 0, 10: all_reduce #1")) << "all are asked before it is said";
  EXPECT_TRUE(group.detector(0).verdict());
  EXPECT_TRUE(group.detector(2).verdict());
}

// A rank that computes watches nobody: those behind it are its watcher's.
TEST(FailureWatch, ARankBehindOneThatDoesNotWaitIsComparedToo) {
  Members group{4};
  group.call(0, all_reduce(1, 100));
  group.call(3, all_reduce(1, 101));
  group.detector(0).watch(all_reduce(1, 100), always);
  ASSERT_TRUE(group.detector(0).verdict());
  EXPECT_EQ(group.detector(0).verdict()->code(), ErrorCode::mismatch);
}

TEST(FailureWatch, ANeighbourThatKnowsOfAFailureTellsIt) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  group.kill(2);
  const Error error = cause_found_by(group.detector(1), all_reduce(1), "connection reset", in(seconds(5)));
  group.detector(0).watch(all_reduce(1), always);
  ASSERT_TRUE(group.detector(0).verdict());
  EXPECT_STREQ(group.detector(0).verdict()->what(), error.what());
}

// A stopped process looks the same for 2 s.
TEST(FailureWatch, ASilentNeighbourIsNotLostAtOnce) {
  Members group{3};
  group.stop(1);
  group.call(0, all_reduce(1));
  group.call(2, all_reduce(1));
  const Deadline until = in(milliseconds(2500));
  group.detector(0).watch(all_reduce(1), [&] { return !until.expired(); });
  EXPECT_FALSE(group.detector(0).verdict());
}

TEST(FailureWatch, ANeighbourThatStaysSilentIsLost) {
  Members group{3, seconds(3)};
  group.stop(1);
  group.call(0, all_reduce(1));
  group.call(2, all_reduce(1));
  const auto begin = Deadline::Clock::now();
  group.detector(0).watch(all_reduce(1), always);
  EXPECT_GT(Deadline::Clock::now() - begin, milliseconds(1800));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(15));
  ASSERT_TRUE(group.detector(0).verdict());
  EXPECT_EQ(group.detector(0).verdict()->code(), ErrorCode::peer_lost);
  EXPECT_EQ(group.detector(0).verdict()->ranks(), Ranks{10});
  EXPECT_THAT(group.detector(0).verdict()->what(), HasSubstr("gave no sign of life for 2 s"));
  EXPECT_TRUE(group.detector(2).verdict());
}

// Its port is closed: by then it has left, or its end is known from a broken connection.
TEST(FailureWatch, ARankThatHasLeftIsGivenTimeWhileNothingIsBroken) {
  Members group{3, seconds(3)};
  group.call_everywhere(all_reduce(1));
  group.kill(1);
  const Deadline until = in(milliseconds(1500));
  group.detector(0).watch(all_reduce(1), [&] { return !until.expired(); });
  EXPECT_FALSE(group.detector(0).verdict());
  group.detector(0).watch(all_reduce(1), always);
  ASSERT_TRUE(group.detector(0).verdict());
  EXPECT_THAT(group.detector(0).verdict()->what(), HasSubstr("rank 10 died or left the group"));
}

TEST(FailureWatch, AWatchGivesWayToAnInvestigation) {
  Members group{3};
  group.stop(1);
  group.call(0, all_reduce(1));
  group.call(2, all_reduce(1));
  std::thread watch([&] { group.detector(0).watch(all_reduce(1), always); });
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Deadline::Clock::now();
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(milliseconds(1500)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
  EXPECT_EQ(error.ranks(), Ranks{10});
  watch.join();
}

TEST(FailureWatch, WithABrokenConnectionASilentRankIsWaitedFor) {
  Members group{3, seconds(3)};
  group.stop(1);
  group.call(0, all_reduce(1));
  group.call(2, all_reduce(1));
  const auto begin = Deadline::Clock::now();
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(60)));
  EXPECT_GT(Deadline::Clock::now() - begin, milliseconds(1800));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(15));
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{10});
}

TEST(FailureWatch, ATransferLooksAfterItsOtherSide) {
  Members group{4, seconds(3)};
  group.stop(2);
  Operation receive;
  receive.kind = OperationKind::recv;
  receive.root = 2;
  group.detector(0).watch(receive, always);
  ASSERT_TRUE(group.detector(0).verdict());
  EXPECT_EQ(group.detector(0).verdict()->ranks(), Ranks{20});
}

}  // namespace
}  // namespace ddp::collectives
