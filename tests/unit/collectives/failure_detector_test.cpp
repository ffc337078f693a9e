// Finding out why an operation does not finish, among members that answer over real channels on loopback: which rank is
// blamed, for what, and that all ranks learn it.
#include "collectives/failure_detector.hpp"
#include "unit/collectives/channel_members.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives {
namespace {

using ddp::test::all_reduce;
using ddp::test::cause_found_by;
using ddp::test::in;
using ddp::test::Members;
using Ranks = std::vector<int>;

TEST(FailureDetector, OperationThatFinishesWhileOthersAreAskedIsNoFailure) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  EXPECT_FALSE(group.detector(0).investigate(
      all_reduce(1), std::nullopt, [] { return false; }, in(seconds(3))));
  EXPECT_FALSE(group.detector(0).verdict());
}

TEST(FailureDetector, DeadlineThatHasPassedDoesNotMakeHealthyRanksLookLost) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(milliseconds(0)));
  EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  EXPECT_TRUE(error.ranks().empty()) << error.what();
}

TEST(FailureDetector, NothingHasFailedAtFirst) {
  Members group{2};
  EXPECT_FALSE(group.detector(0).verdict());
  EXPECT_FALSE(group.detector(1).verdict());
}

TEST(FailureDetector, ARankThatIsGoneIsNamedByItsWorldRank) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  group.kill(2);
  const auto begin = Deadline::Clock::now();
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(60)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{20});
  EXPECT_THAT(error.what(), HasSubstr("rank 20 died or left the group"));
  EXPECT_EQ(error.native(), "connection reset");
  EXPECT_THAT(error.attempted(), HasSubstr("all_reduce #1"));
}

TEST(FailureDetector, SurvivorsAreTold) {
  Members group{4};
  group.call_everywhere(all_reduce(1));
  group.kill(2);
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(5)));
  for (const int rank : {0, 1, 3}) {
    ASSERT_TRUE(group.detector(rank).verdict()) << rank;
    EXPECT_STREQ(group.detector(rank).verdict()->what(), error.what());
    EXPECT_EQ(group.detector(rank).verdict()->ranks(), Ranks{20});
  }
  EXPECT_EQ(group.told(0), 0) << "the rank that found it needs no message";
  EXPECT_EQ(group.told(1), 1);
  EXPECT_EQ(group.told(3), 1);
}

TEST(FailureDetector, ASilentRankIsLostByTheDeadline) {
  Members group{3};
  group.stop(1);
  group.call(0, all_reduce(1));
  group.call(2, all_reduce(1));
  const auto begin = Deadline::Clock::now();
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(milliseconds(1000)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{10});
  EXPECT_THAT(error.what(), HasSubstr("no sign of life"));
  ASSERT_TRUE(group.detector(2).verdict()) << "time must be left to tell the others";
}

// Ranks 0 and 1 share a node, 2 and 3 another: rank 2 reports that rank 3 runs.
TEST(FailureDetector, ASilentRankWhoseProcessRunsIsSlow) {
  for (const int slow : {1, 3}) {
    Members group{4};
    group.place({0, 0, 1, 1});
    group.stop(slow, base::own_process());
    for (const int rank : {0, 1, 2, 3}) {
      if (rank != slow) group.call(rank, all_reduce(1));
    }
    const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(milliseconds(1000)));
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    EXPECT_EQ(error.ranks(), Ranks{slow * 10});
    EXPECT_THAT(error.what(), HasSubstr("too slow to answer before the deadline, but not stopped"));
  }
}

TEST(FailureDetector, GoneAndSilentAreBothNamed) {
  Members group{4};
  group.stop(1);
  for (const int rank : {0, 2, 3}) group.call(rank, all_reduce(1));
  group.kill(3);
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(milliseconds(600)));
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), (Ranks{10, 30}));
  EXPECT_THAT(error.what(), HasSubstr("rank 30 died or left the group; rank 10 gave no sign of life"));
}

TEST(FailureDetector, RanksThatDidNotCallItAreNamed) {
  Members group{4};
  group.call_everywhere(all_reduce(1));
  group.call(0, all_reduce(2));
  group.call(2, all_reduce(2));
  const Error error = cause_found_by(group.detector(0), all_reduce(2), "", in(seconds(3)));
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), (Ranks{10, 30}));
  EXPECT_THAT(error.what(), HasSubstr("ranks 10, 30 did not call it before the deadline, but are alive"));
}

TEST(FailureDetector, DifferentCallsAreAMismatchThatPrintsBoth) {
  Members group{4};
  for (const int rank : {0, 1, 3}) group.call(rank, all_reduce(1, 100));
  group.call(2, all_reduce(1, 101));
  const Error error = cause_found_by(group.detector(0), all_reduce(1, 100), "", in(seconds(3)));
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("ranks 0, 10, 30: all_reduce #1 of float32 x 100, sum"));
  EXPECT_THAT(error.what(), HasSubstr("rank 20: all_reduce #1 of float32 x 101, sum"));
  ASSERT_TRUE(group.detector(2).verdict());
  EXPECT_EQ(group.detector(2).verdict()->code(), ErrorCode::mismatch);
}

TEST(FailureDetector, AMismatchIsAProofEvenIfARankLeftBecauseOfIt) {
  Members group{3};
  group.call(0, all_reduce(1, 100));
  group.call(1, all_reduce(1, 101));
  group.kill(2);
  EXPECT_EQ(cause_found_by(group.detector(0), all_reduce(1, 100), "connection reset", in(seconds(3))).code(),
            ErrorCode::mismatch);
}

TEST(FailureDetector, AllInStepMeansTheNetworkIsSlow) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "", in(seconds(3)));
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_THAT(error.what(), HasSubstr("all ranks are alive and in it"));
}

TEST(FailureDetector, ABreakWhileAllAreAliveIsTheNetworksFault) {
  Members group{2};
  group.call_everywhere(all_reduce(1));
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(5)));
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_EQ(error.native(), "connection reset");
  EXPECT_THAT(error.what(), HasSubstr("no other rank is known to be lost"));
}

// A connection breaks before its process is gone: asking again finds it dead.
TEST(FailureDetector, ARankThatDiesWhileItIsAskedIsFound) {
  Members group{2};
  group.call_everywhere(all_reduce(1));
  std::thread death([&] {
    std::this_thread::sleep_for(milliseconds(150));
    group.kill(1);
  });
  const Error error = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(5)));
  death.join();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{10});
}

TEST(FailureDetector, ATransferBlamesItsPeer) {
  Members group{3};
  Operation receive;
  receive.kind = OperationKind::recv;
  receive.root = 2;
  receive.tag = 4;
  const Error error = cause_found_by(group.detector(0), receive, "", in(seconds(3)));
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), Ranks{20});
  EXPECT_THAT(error.what(), HasSubstr("rank 20 is alive but sent rank 0 nothing for it"));
}

TEST(FailureDetector, TheVerdictOfAnotherIsAdopted) {
  Members group{3};
  group.call_everywhere(all_reduce(1));
  group.kill(2);
  const Error first = cause_found_by(group.detector(1), all_reduce(1), "connection reset", in(seconds(5)));
  const Error second = cause_found_by(group.detector(0), all_reduce(1), "broken pipe", in(seconds(5)));
  EXPECT_STREQ(second.what(), first.what()) << "all survivors report the same cause";
}

TEST(FailureDetector, TheFirstVerdictStays) {
  Members group{2};
  group.call_everywhere(all_reduce(1));
  const Error first = cause_found_by(group.detector(0), all_reduce(1), "", in(seconds(3)));
  group.kill(1);
  const Error second = cause_found_by(group.detector(0), all_reduce(1), "connection reset", in(seconds(3)));
  EXPECT_STREQ(second.what(), first.what());
}

TEST(FailureDetector, AllInvestigatingAtOnceBlameTheSame) {
  Members group{5};
  group.call_everywhere(all_reduce(1));
  group.kill(4);
  ddp::test::run_ranks(4, [&](int rank) {
    const Error error = cause_found_by(group.detector(rank), all_reduce(1), "connection reset", in(seconds(10)));
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    EXPECT_EQ(error.ranks(), Ranks{40});
  });
}

// It makes the others keep its proposal, but cannot confirm to them that all do.
TEST(FailureDetector, WhatADeadRankHadProposedIsTheVerdict) {
  Members group{4};
  group.call_everywhere(all_reduce(1));
  group.kill(3);
  const Error proposed = collectives::communication_failure(all_reduce(1), "EPIPE (32)", {30});
  group.propose(1, proposed);
  group.kill(0);
  for (const int rank : {2, 1}) {
    const Error error = cause_found_by(group.detector(rank), all_reduce(1), "connection reset", in(seconds(10)));
    EXPECT_STREQ(error.what(), proposed.what()) << rank;
  }
}

TEST(FailureDetector, ARankThatEndsTheGroupTakesOverWhatWasProposedBefore) {
  Members group{3};
  const Error proposed = collectives::communication_failure(all_reduce(1), "EPIPE (32)", {20});
  group.propose(1, proposed);
  EXPECT_FALSE(group.detector(1).verdict());
  const Error own = collectives::communication_failure(all_reduce(1), "a hook failed", {0});
  EXPECT_STREQ(group.detector(0).agree(own).what(), proposed.what());
  EXPECT_STREQ(group.detector(0).verdict()->what(), proposed.what());
}

TEST(FailureDetector, ARankThatLeavesTellsWhatWasProposedBefore) {
  Members group{4};
  const Error proposed = collectives::communication_failure(all_reduce(1), "EPIPE (32)", {20});
  group.propose(1, proposed);
  group.detector(0).notify_all(collectives::communication_failure(all_reduce(1), "it closes the group", {0}));
  EXPECT_FALSE(group.detector(0).verdict());
  for (const int rank : {1, 2, 3}) {
    ASSERT_TRUE(group.detector(rank).verdict()) << rank;
    EXPECT_STREQ(group.detector(rank).verdict()->what(), proposed.what()) << rank;
  }
}

TEST(FailureDetector, ASilentWitnessIsNotWaitedForLong) {
  Members group{4};
  group.stop(0);
  group.stop(1);
  const auto begin = Deadline::Clock::now();
  const Error own = collectives::communication_failure(all_reduce(1), "a hook failed", {20});
  EXPECT_STREQ(group.detector(2).agree(own).what(), own.what());
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(4)) << "a second, on a machine that has nothing else to do";
}

TEST(FailureDetector, AGroupOfOneHasNoOneToAsk) {
  const OperationLog log;
  const GroupMembers members{.name = "alone", .rank = 0, .global_ranks = {7}, .endpoints = {{}}, .channel = nullptr};
  FailureDetector alone{members, log, [] {}};
  const auto begin = Deadline::Clock::now();
  EXPECT_EQ(cause_found_by(alone, all_reduce(1), "", in(seconds(60))).code(), ErrorCode::timeout);
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
}

}  // namespace

// Watching the ranks that a slow operation waits for, over real channels on loopback: differences and losses are found
// long before the deadline, and a slow rank is not lost.

namespace {

using ddp::test::all_reduce;
using ddp::test::cause_found_by;
using ddp::test::in;
using ddp::test::Members;
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

// A computing rank watches no other: its own watcher takes over the ranks after it.
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

// Its port is closed: it has left, or a broken connection has already shown its end.
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
