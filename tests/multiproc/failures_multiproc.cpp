// A rank dies, stops, stays away or calls something else: every survivor must name it, in time.
#include <signal.h>

#include <gtest/gtest.h>

#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

constexpr int kWorld = 4;
constexpr int kVictim = 2;

/// The number behind "WAITED ", in seconds; -1 when there is none.
double waited(const std::string& output) {
  const auto place = output.rfind("WAITED ");
  return place == std::string::npos ? -1 : std::stod(output.substr(place + 7));
}

void expect_error(const RankResult& result, const std::string& code, const std::string& ranks) {
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("code=" + code + " ranks=[" + ranks + "]"), std::string::npos) << result.output;
}

TEST(LostRank, KilledInAllReduceIsNamedByAllSurvivorsAtOnce) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "loop", "60", "100000"});
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.signal(kVictim, SIGKILL);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (int rank = 0; rank < kWorld; ++rank) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    if (rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL);
      continue;
    }
    expect_error(result, "peer_lost", "2");
    EXPECT_LT(waited(result.output), 30) << "a closed connection must not wait for the deadline of 60 s";
  }
}

TEST(LostRank, StoppedInAllReduceIsNamedByAllSurvivorsWithinTheDeadline) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "loop", "8", "100000"});
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.signal(kVictim, SIGSTOP);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)), kVictim);
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == kVictim) continue;
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    expect_error(result, "peer_lost", "2");
    EXPECT_LE(waited(result.output), 8.0 + 0.5) << "the deadline was 8 s";
  }
}

TEST(LostRank, SeveralKilledAtOnceAreAllNamed) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "loop", "60", "1000"});
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  ranks.signal(1, SIGSTOP);  // so that it does not report the death of the other
  ranks.signal(3, SIGSTOP);
  ranks.signal(1, SIGKILL);
  ranks.signal(3, SIGKILL);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 3);
    // the kernel ends them one after the other: a rank that asks in between may find the second alive
    EXPECT_TRUE(results[rank].output.find("ranks=[1,3]") != std::string::npos ||
                results[rank].output.find("ranks=[1]") != std::string::npos ||
                results[rank].output.find("ranks=[3]") != std::string::npos)
        << results[rank].output;
  }
}

class Difference : public testing::TestWithParam<const char*> {};

TEST_P(Difference, IsReportedLongBeforeTheDeadlineByWhoeverWaits) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "differ", GetParam(), "2", "100"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(90)));
  std::size_t reported = 0;
  for (const RankResult& result : results) {
    // a broadcast does not make everyone wait: ranks that have passed on root's data are done
    if (std::string(GetParam()) == "root" && result.exit_code == 0) continue;
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("code=mismatch"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("rank 2: "), std::string::npos) << result.output;
    EXPECT_LT(waited(result.output), 60) << "a difference must not wait for the deadline of 100 s";
    ++reported;
  }
  EXPECT_GE(reported, 1U);
}

TEST_P(Difference, IsReportedByEveryRankWhenArgumentsAreCompared) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "differ", GetParam(), "2", "100"}, {"DDP_CHECK_COLLECTIVES=1"});
  for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(90)))) {
    expect_error(result, "mismatch", "0,1,2,3");
    EXPECT_LT(waited(result.output), 60) << "a difference must not wait for the deadline of 100 s";
  }
}

INSTANTIATE_TEST_SUITE_P(Arguments, Difference, testing::Values("size", "empty", "dtype", "op", "root", "kind"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Transfer, OfAnotherSizeTimesOutAndNamesThePeer) {
  RankProcesses ranks(2, {RANK_PROGRAM, "differ", "transfer", "0", "4"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("code=timeout"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("same tag, element type and count"), std::string::npos) << result.output;
  }
}

TEST(AbsentRank, IsNamedThoughItIsAlive) {
  RankProcesses ranks(kWorld, {RANK_PROGRAM, "differ", "absent", "1", "6"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (std::size_t rank = 0; rank < kWorld; ++rank) {
    expect_error(results[rank], "timeout", "1");
    if (rank == 1) continue;  // it came after the deadline
    EXPECT_LE(waited(results[rank].output), 6.0 + 0.5);
  }
}

TEST(AbsentRank, ThatNeverReachesInitIsNamedByTheOthers) {
  // rank 1 is stopped before it can connect
  RankProcesses ranks(3, {RANK_PROGRAM, "world"}, {"DDP_INIT_TIMEOUT=6"});
  ranks.signal(1, SIGSTOP);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)), 1);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 4);
    EXPECT_NE(results[rank].output.find("code=timeout ranks=[1]"), std::string::npos) << results[rank].output;
  }
}

}  // namespace
}  // namespace ddp::test
