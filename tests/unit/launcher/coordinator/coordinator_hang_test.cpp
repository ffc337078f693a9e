// When no node's ranks get on: all are asked what they do, the user is told once who is missing, and the job goes on.
#include "coordinator_fixture.hpp"
#include "diagnostics/hang/hang_inquiry.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::launcher::test {
namespace {

using flight::FlightView;

/// In all_reduce #2 of the world's group for a minute, or asleep after #1.
diagnostics::RankFacts facts_of(int rank, bool asleep) {
  diagnostics::RankFacts facts;
  facts.rank = rank;
  facts.world_size = 4;
  facts.host = rank < kRanksPerNode ? "a" : "b";
  facts.state = 'S';
  facts.call = asleep ? "clock_nanosleep" : "futex";
  facts.steady = true;
  FlightView view;
  view.rank = rank;
  view.world_size = 4;
  view.phase = flight::FlightPhase::wired_up;
  const std::uint64_t called = asleep ? 1 : 2;
  view.groups.push_back(
      {.name = "w", .backend = "host", .rank = rank, .size = 4, .members = {0, 1, 2, 3}, .last_queued = called});
  view.last = FlightView::Call{.group = "w",
                               .operation = "all_reduce",
                               .sequence = called,
                               .count = 5,
                               .age_s = 60,
                               .end_s = asleep ? 60.0 : 0.0};
  if (!asleep) view.unfinished = {*view.last};
  facts.flight = view;
  return facts;
}

class CoordinatorHang : public testing::Test, protected CoordinatorJob {
 protected:
  CoordinatorHang() {
    options.hang_report_after = 60s;
    options.peers.answer = 600s;  // in real time, on a busy machine
  }
  void still(int link, bool still = true) { say(link, control::RanksStill{.epoch = 0, .still = still}); }
  void observed(int link, std::vector<diagnostics::RankFacts> ranks) {
    const diagnostics::HostFacts facts{.host = link == 0 ? "a" : "b", .ranks = std::move(ranks)};
    say(link, control::RanksObserved{.epoch = 0, .facts = diagnostics::encode(facts)});
  }
  /// All are still and have answered; rank 3 is missing, if anybody.
  void hang(bool somebody = true) {
    still(0);
    still(1);
    forget_all();
    observed(0, {facts_of(0, false), facts_of(1, false)});
    observed(1, {facts_of(2, false), facts_of(3, somebody)});
  }
  /// Rank 3 has got SIGKILL.
  void killed() {
    const RankEnd end{.code = SIGKILL, .by_signal = true, .core_dumped = false};
    say(1, control::RankEnded{.epoch = 0, .local_rank = 1, .end = end});
  }
  /// @return of the whole job, which has ended
  const JobOutcome& end_job(int code = 1) {
    end_ranks(0, code);
    end_ranks(1, code);
    say(0, control::AttemptCleaned{.epoch = 0});
    say(1, control::AttemptCleaned{.epoch = 0});
    return coordinator().outcome();
  }
};

TEST_F(CoordinatorHang, NodesLearnForHowLongTheirRanksMustStandStill) {
  connect();
  connect();
  say(0, hello("a"));
  say(1, hello("b"));
  EXPECT_EQ(heard_one<control::PrepareAttempt>(0).still_after_ms, 60'000);
}

TEST_F(CoordinatorHang, OnceAllNodesStandStillTheVerdictIsToldAndTheJobGoesOn) {
  run();
  still(0);
  EXPECT_THAT(heard_texts(0), IsEmpty()) << "the other node's ranks get on";
  still(1);
  EXPECT_THAT(heard_texts(0), ElementsAre("ObserveRanks"));
  EXPECT_THAT(heard_texts(1), ElementsAre("ObserveRanks"));
  observed(0, {facts_of(0, false), facts_of(1, false)});
  EXPECT_THAT(notes, IsEmpty());
  observed(1, {facts_of(2, false), facts_of(3, true)});
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], StartsWith("no progress for 60 s: rank 3 is asleep in clock_nanosleep, last all_reduce #1 of "
                                   "group 'w'; ranks 0-2 wait for it in all_reduce #2 of group 'w', for 60 s\n"));
  EXPECT_THAT(notes[0], HasSubstr("\n  rank 3 (b): asleep"));
  pass(1h);
  EXPECT_THAT(heard_texts(0), IsEmpty());
  EXPECT_EQ(notes.size(), 1U) << "told once";
  EXPECT_FALSE(end_job(0).hang);
}

TEST_F(CoordinatorHang, ANewStandstillIsToldAgain) {
  run();
  hang();
  still(1, false);
  EXPECT_THAT(heard_texts(0), IsEmpty());
  still(1);
  EXPECT_THAT(heard_texts(0), ElementsAre("ObserveRanks"));
  EXPECT_EQ(notes.size(), 1U);
}

TEST_F(CoordinatorHang, WhereNothingHangsNothingIsToldAndItLooksAgainLater) {
  run();
  still(0);
  still(1);
  forget_all();
  for (const int link : {0, 1}) {
    auto busy = facts_of(2 * link, true);
    busy.cores = 1;
    auto other = facts_of(2 * link + 1, true);
    observed(link, {busy, other});
  }
  EXPECT_THAT(notes, IsEmpty());
  ASSERT_TRUE(coordinator().next_deadline());
  pass(59s);
  EXPECT_THAT(heard_texts(0), IsEmpty());
  pass(1s);
  EXPECT_THAT(heard_texts(0), ElementsAre("ObserveRanks"));
}

TEST_F(CoordinatorHang, ARankThatHangsForTooLongIsKilledWhichSpendsARestart) {
  options.end_hung = 600s;
  options.membership.max_restarts = 1;
  run();
  hang();
  pass(539s);
  EXPECT_THAT(heard_texts(1), IsEmpty()) << "told after 60 s, but not ended yet";
  ASSERT_TRUE(coordinator().next_deadline());
  pass(1s);
  EXPECT_THAT(heard_texts(1), ElementsAre("ObserveRanks")) << "it may be another by now";
  observed(0, {facts_of(0, false), facts_of(1, false)});
  observed(1, {facts_of(2, false), facts_of(3, true)});
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_THAT(notes[1], StartsWith("no progress for 600 s: rank 3 is asleep"));
  EXPECT_EQ(notes[2], "killing rank 3 (--end-hung)");
  EXPECT_THAT(heard_texts(1), ElementsAre("KillRanks 1"));
  EXPECT_THAT(heard_texts(0), ElementsAre("ObserveRanks"));
  killed();
  EXPECT_THAT(heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  end_job(143);
  EXPECT_THAT(restarts, ElementsAre("attempt 0, restart 1"));
  EXPECT_EQ(coordinator().restarts_used(), 1);
}

TEST_F(CoordinatorHang, TheShorterTimeIsLookedAtAndAKilledRankIsTheCause) {
  options.end_hung = 20s;
  connect();
  connect();
  say(0, hello("a"));
  say(1, hello("b"));
  EXPECT_EQ(heard_one<control::PrepareAttempt>(0).still_after_ms, 20'000);
  for (const int link : {1, 0}) say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  hang();
  EXPECT_THAT(notes, ElementsAre(StartsWith("no progress for 20 s: rank 3"), "killing rank 3 (--end-hung)"));
  say(0, rank_ended(0, 1));  // by the loss of rank 3, of whom nothing is known yet
  killed();
  const JobOutcome& outcome = end_job();
  ASSERT_FALSE(outcome.failures.empty());
  EXPECT_EQ(outcome.failures.front().name.rank, 3);
  EXPECT_EQ(outcome.failures.front().hung, 20s);
  ASSERT_TRUE(outcome.hang);
  EXPECT_EQ(outcome.hang->when, "no progress for 20 s");
}

TEST_F(CoordinatorHang, WhereNobodyCanBeNamedAllAreKilledAndOneThatDoesNotEndIsNotWaitedFor) {
  options.end_hung = 60s;
  run();
  hang(false);
  EXPECT_THAT(heard_texts(0), ElementsAre("KillRanks 0,1"));
  EXPECT_THAT(heard_texts(1), ElementsAre("KillRanks 0,1"));
  pass(11s);
  EXPECT_THAT(heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
}

TEST_F(CoordinatorHang, ARankThatGetsOnAgainIsNotKilled) {
  options.end_hung = 600s;
  run();
  hang();
  still(1, false);
  pass(1h);
  still(1);
  forget_all();
  observed(0, {facts_of(0, false), facts_of(1, false)});
  still(1, false);
  observed(1, {facts_of(2, false), facts_of(3, true)});
  pass(1h);
  EXPECT_THAT(heard_texts(1), IsEmpty()) << "it began to move while all were asked";
}

TEST(HangInquiry, AStandstillThatIsOverOnceAllHaveAnsweredIsNotLookedAtAgain) {
  diagnostics::HangInquiry hang{60s};
  const auto now = Deadline::Clock::now();
  hang.note(0, true, now);
  hang.ask({0}, Deadline{now + 12s});
  hang.note(0, false, now);
  diagnostics::HostFacts facts{.host = "a"};
  for (int rank = 0; rank < 4; ++rank) {
    facts.ranks.push_back(facts_of(rank, true));
    facts.ranks.back().cores = rank % 2 == 0 ? 1 : 0;
  }
  hang.answer(0, std::move(facts));
  EXPECT_FALSE(hang.conclude_standstill(now));
  EXPECT_FALSE(hang.next_look()) << "the coordinator would wake up for it again and again";
  EXPECT_FALSE(hang.is_due({0}, now + 1h));
  hang.note(0, true, now + 2h);
  EXPECT_TRUE(hang.is_due({0}, now + 2h));
}

TEST_F(CoordinatorHang, ANodeThatDoesNotAnswerIsNotWaitedForAndRanksAreNotTakenForEnded) {
  run();
  still(0);
  still(1);
  observed(0, {facts_of(0, false), facts_of(1, false)});
  pass(11s);
  EXPECT_THAT(notes, IsEmpty());
  pass(1s);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("ranks 2, 3 are not on the hosts that were asked"));
}

TEST_F(CoordinatorHang, BrokenFactsAndThoseOfOtherNodesRanksAreLeftOut) {
  run();
  still(0);
  still(1);
  say(1, control::RanksObserved{.epoch = 0, .facts = {std::byte{9}}});
  observed(0, {facts_of(0, false), facts_of(1, false), facts_of(3, true)});
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("\n  b: reading the facts of a host: it has version 9"));
  EXPECT_THAT(notes[0], testing::Not(HasSubstr("asleep")));
}

TEST_F(CoordinatorHang, AFailureThatFollowsFromItHasTheReport) {
  run();
  hang();
  still(0, false);  // operations fail by their deadline, then ranks end
  pass(5s);
  const JobOutcome& outcome = end_job();
  ASSERT_TRUE(outcome.hang);
  EXPECT_EQ(outcome.hang->when, "no progress for 60 s");
  EXPECT_THAT(outcome.hang->text, StartsWith("rank 3 is asleep"));
}

TEST_F(CoordinatorHang, AFailureLongAfterItHasNone) {
  run();
  hang();
  still(0, false);
  pass(31s);
  EXPECT_FALSE(end_job().hang);
}

TEST_F(CoordinatorHang, WhatATimeoutEndsIsLookedAtBefore) {
  options.timeout = 100s;
  options.stack_limit = 20s;
  run();
  hang();  // which is told, too
  pass(100s);
  EXPECT_THAT(heard_texts(0), ElementsAre("CollectStacks"));
  observed(0, {facts_of(0, true), facts_of(1, false)});
  observed(1, {facts_of(2, false), facts_of(3, false)});
  for (const int link : {0, 1}) say(link, control::StacksCollected{.epoch = 0});
  const JobOutcome& outcome = end_job();
  ASSERT_TRUE(outcome.hang);
  EXPECT_EQ(outcome.hang->when, "before the ranks were ended");
  EXPECT_THAT(outcome.hang->text, StartsWith("rank 0 is asleep"));
  EXPECT_THAT(outcome.hang->json, HasSubstr("\"culprits\": [\n    0\n  ]"));
}

}  // namespace
}  // namespace ddp::launcher::test
