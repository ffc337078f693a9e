// Whom errors of libddp name becomes the root cause, whoever ended first.
#include "outcome/group_verdict.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kMismatch =
    "all_reduce #38 in group 'torch.0': the ranks called different things; ranks 0, 1, 3: all_reduce of float32 x 3; "
    "rank "
    "2: broadcast of float32 x 1 (ranks 0-3); every rank must call the same collectives in the same order";

RankFailure failure(int rank, std::string said, int code = 1) {
  RankFailure failure{.name = {.rank = rank, .local_rank = rank, .pid = 100 + rank},
                      .end = RankEnd{.code = code, .by_signal = false, .core_dumped = false}};
  failure.traces.stderr_tail = std::move(said);
  return failure;
}

std::vector<int> order(const JobOutcome& outcome) {
  std::vector<int> ranks;
  for (const RankFailure& each : outcome.failures) ranks.push_back(each.name.rank);
  return ranks;
}

TEST(BlamedRanks, AreThoseThatTheErrorIsAbout) {
  EXPECT_THAT(blamed_ranks(kMismatch), ElementsAre(2));
  EXPECT_THAT(blamed_ranks("all_reduce #3: rank 2 died or left the group (rank 2); look at the last output"),
              ElementsAre(2));
  EXPECT_THAT(blamed_ranks("barrier: ranks 1, 3-5 gave no sign of life for 5 s (stopped, host n1 down)"),
              ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(blamed_ranks("x: rank 7 left the group and has ended; rank 9 died or left the group"), ElementsAre(7, 9));
  EXPECT_THAT(blamed_ranks("x: ranks 1, 2 did not call it before the deadline, but are alive (ranks 1, 2)"),
              ElementsAre(1, 2));
  EXPECT_THAT(blamed_ranks("recv: rank 4 is alive but sent rank 1 nothing for it before the deadline"), ElementsAre(4));
  EXPECT_THAT(blamed_ranks("send: rank 5 is alive but did not take it from rank 1 before the deadline"),
              ElementsAre(5));
  EXPECT_THAT(blamed_ranks("x: rank 3 is too slow to answer before the deadline, but not stopped"), ElementsAre(3));
}

TEST(BlamedRanks, StandInTheLastLineThatNamesThem) {
  EXPECT_THAT(blamed_ranks(std::string("x: rank 1 died or left the group\nTraceback\n[rank0]: RuntimeError: ") +
                           kMismatch + "\nterminate called\n"),
              ElementsAre(2));
}

TEST(BlamedRanks, AreNoneWhereNobodyDiffersFromMost) {
  EXPECT_THAT(
      blamed_ranks("x: the ranks called different things; rank 0: all_reduce; rank 1: barrier (ranks 0, 1); every"),
      IsEmpty());
  EXPECT_THAT(blamed_ranks("x: the ranks called different things; ranks 0, 1: a; ranks 2, 3: b"), IsEmpty());
  EXPECT_THAT(blamed_ranks("x: the ranks called different things; rank 0: a; rank 1: b; rank 2: c"), IsEmpty());
}

TEST(BlamedRanks, AreNoneInOtherTexts) {
  for (const char* text :
       {"", "\n\n", "ValueError: bad loss", " died or left the group", "frank 2 died", "ranks  died or left the group",
        "rank 99999999999999 died or left the group", "ranks 5-1 died or left the group",
        "ranks 1,, died or left the group", "the ranks called different things",
        "the ranks called different things; rank", "; rank 1: a", "rank 0-99999999 died or left the group"}) {
    EXPECT_THAT(blamed_ranks(text), IsEmpty()) << text;
  }
}

TEST(GroupVerdict, TheNamedRankIsTheFirstFailure) {
  JobOutcome outcome;
  for (const int rank : {3, 0, 2, 1}) outcome.failures.push_back(failure(rank, kMismatch, rank + 10));
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(2, 3, 0, 1));
  ASSERT_TRUE(outcome.verdict);
  EXPECT_THAT(outcome.verdict->ranks, ElementsAre(2));
  EXPECT_THAT(outcome.verdict->reporters, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(outcome.verdict->has_failed);
  EXPECT_EQ(outcome.exit_status(), 12);
}

TEST(GroupVerdict, ARankThatHadToBeEndedIsNamed) {
  JobOutcome outcome;
  for (const int rank : {3, 0})
    outcome.failures.push_back(failure(rank, "x: rank 2 did not call it before the deadline, but is alive (rank 2)"));
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(3, 0));
  ASSERT_TRUE(outcome.verdict);
  EXPECT_FALSE(outcome.verdict->has_failed);
}

TEST(GroupVerdict, MostDecide) {
  JobOutcome outcome;
  outcome.failures = {failure(3, "x: rank 0 died or left the group"), failure(0, "x: rank 2 died or left the group"),
                      failure(1, "x: rank 2 died or left the group"), failure(2, "Segmentation fault")};
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(2, 3, 0, 1));
}

TEST(GroupVerdict, WhoEndedFirstStaysWhereTheErrorsSayTheSame) {
  JobOutcome outcome;
  outcome.failures = {failure(2, "ValueError: bad loss"), failure(0, "x: rank 2 died or left the group")};
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(2, 0));
  EXPECT_FALSE(outcome.verdict);
  JobOutcome other;
  other.failures = {failure(1, "ValueError"), failure(0, "KeyError")};
  apply_group_verdict(other);
  EXPECT_THAT(order(other), ElementsAre(1, 0));
  EXPECT_FALSE(other.verdict);
}

TEST(GroupVerdict, AnAbortAndALostNodeComeFirst) {
  JobOutcome outcome;
  outcome.failures = {failure(3, kMismatch), failure(2, kMismatch)};
  outcome.failures[0].abort = AbortCall{.status = 3, .message = "gave up"};
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(3, 2));
  outcome.failures[0].abort.reset();
  outcome.nodes.push_back({.host = "n1", .node_rank = 1, .num_ranks = 1, .message = "lost", .exit_status = 1});
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(3, 2));
}

TEST(GroupVerdict, ErrorFilesCountToo) {
  JobOutcome outcome;
  outcome.failures = {failure(3, ""), failure(2, "")};
  outcome.failures[0].traces.error_content =
      std::string(R"({"message": {"message": "RuntimeError: )") + kMismatch + R"("}})";
  apply_group_verdict(outcome);
  EXPECT_THAT(order(outcome), ElementsAre(2, 3));
}

}  // namespace
}  // namespace ddp::launcher
