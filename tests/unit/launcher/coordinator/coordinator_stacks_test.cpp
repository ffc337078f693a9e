// When nothing moves: all nodes are asked for stacks, and ranks are ended once these are there, or time is up.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

class CoordinatorStacks : public testing::Test, protected CoordinatorJob {
 protected:
  CoordinatorStacks() {
    options.timeout = 100s;
    options.stack_limit = 20s;
    options.ending_signals.push_back(SIGQUIT);
    options.peers.answer = 600s;  // in real time, on a busy machine
  }
  static control::StacksCollected stacks(std::vector<StackGroup> groups) {
    return {.epoch = 0, .groups = std::move(groups), .notes = {{.hosts = {"x"}, .text = "no py-spy"}}};
  }
  static StackGroup both(const std::string& text) { return {.ranks = {0, 1}, .tool = "gdb", .text = text}; }
  void end_job() {
    end_ranks(0, 1);
    end_ranks(1, 1);
    say(0, control::AttemptCleaned{.epoch = 0});
    say(1, control::AttemptCleaned{.epoch = 0});
  }
};

TEST_F(CoordinatorStacks, TheTimeoutComesAfterAllStacks) {
  run();
  pass(100s);
  EXPECT_THAT(heard_texts(0), ElementsAre("CollectStacks"));
  EXPECT_THAT(heard_texts(1), ElementsAre("CollectStacks"));
  EXPECT_THAT(notes, ElementsAre("--timeout: reading the stacks of 4 ranks, up to 20 s; press Ctrl-C to skip this"));
  say(0, stacks({both("a")}));
  EXPECT_THAT(heard_texts(0), IsEmpty());
  say(1, stacks({both("a")}));
  EXPECT_THAT(heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  EXPECT_THAT(heard_texts(1), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  end_job();
  EXPECT_EQ(coordinator().exit_status(), 124);
  const RankStacks& found = coordinator().outcome().stacks;
  EXPECT_THAT(found.groups, ElementsAre(StackGroup{.ranks = {0, 1, 2, 3}, .tool = "gdb", .text = "a"}));
  EXPECT_THAT(found.notes, ElementsAre(StackNote{.hosts = {"a", "b"}, .text = "no py-spy"}));
}

TEST_F(CoordinatorStacks, ANodeThatDoesNotAnswerIsNotWaitedForForever) {
  run();
  pass(100s);
  say(0, stacks({both("a")}));
  forget_all();
  pass(21s);
  EXPECT_THAT(heard_texts(0), IsEmpty());
  pass(1s);
  EXPECT_THAT(heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  say(1, stacks({both("late")}));
  end_job();
  const RankStacks& found = coordinator().outcome().stacks;
  EXPECT_THAT(found.groups, ElementsAre(both("a")));
  EXPECT_THAT(found.notes, Contains(StackNote{.hosts = {"b"}, .text = "the stacks of this node did not come in time"}));
}

TEST_F(CoordinatorStacks, ALostNodeIsNotWaitedFor) {
  run();
  pass(100s);
  say(0, stacks({both("a")}));
  forget_all();
  lose(1);
  EXPECT_THAT(heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
}

TEST_F(CoordinatorStacks, ASilentNodeIsNotWaitedFor) {
  options.peers.answer = 0s;
  run();
  pass(100s);
  pass(100ms);
  EXPECT_THAT(heard_texts(0), ElementsAre("CollectStacks", "SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
}

TEST_F(CoordinatorStacks, RanksThatANodeDoesNotHaveAreLeftOut) {
  run();
  pass(100s);
  say(0, stacks({{.ranks = {1, 2, 70'000}, .tool = "gdb", .text = "a"}, {.ranks = {9}, .tool = "gdb", .text = "b"}}));
  say(1, stacks({}));
  end_job();
  EXPECT_THAT(coordinator().outcome().stacks.groups, ElementsAre(StackGroup{.ranks = {1}, .tool = "gdb", .text = "a"}));
}

TEST_F(CoordinatorStacks, ASecondSigquitReadsStacksAndKills) {
  run();
  say(0, control::SignalReceived{.signal = SIGQUIT});
  EXPECT_THAT(heard_texts(1), ElementsAre("SignalRanks SIGQUIT groups", "SignalRanks SIGCONT groups"));
  say(0, control::SignalReceived{.signal = SIGQUIT});
  EXPECT_THAT(heard_texts(1), ElementsAre("CollectStacks"));
  say(1, stacks({both("b")}));
  say(0, stacks({both("a")}));
  EXPECT_THAT(heard_texts(1), ElementsAre("SignalRanks SIGKILL groups"));
  end_job();
  EXPECT_EQ(coordinator().exit_status(), 128 + SIGQUIT);
  EXPECT_THAT(coordinator().outcome().stacks.groups, testing::SizeIs(2));
}

TEST_F(CoordinatorStacks, CtrlCDoesNotWaitForStacks) {
  run();
  pass(100s);
  forget_all();
  say(0, control::SignalReceived{.signal = SIGINT});
  EXPECT_THAT(heard_texts(1), ElementsAre("SignalRanks SIGINT groups", "SignalRanks SIGCONT groups"));
}

TEST_F(CoordinatorStacks, AFailingJobIsNotExamined) {
  options.failure_grace = 50s;
  run();
  say(0, rank_ended(0, 3));
  pass(100s);
  EXPECT_THAT(heard_texts(1), testing::Not(Contains("CollectStacks")));
}

TEST_F(CoordinatorStacks, ItSaysWhomItWaitsForAfterASignal) {
  run();
  say(0, control::SignalReceived{.signal = SIGINT});
  pass(900ms);
  EXPECT_THAT(notes, IsEmpty());
  pass(100ms);
  EXPECT_THAT(notes, ElementsAre("SIGINT: waiting up to 29 s for 4 ranks on a, b; press Ctrl-C again to kill them"));
  end_ranks(0, 1);
  say(1, rank_ended(0, 1));
  pass(5s);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes[1], HasSubstr("SIGINT: still running: rank 3 ("));
}

TEST_F(CoordinatorStacks, ItIsQuietWhereRanksEndAtOnce) {
  run();
  say(0, control::SignalReceived{.signal = SIGINT});
  end_ranks(0, 1);
  end_ranks(1, 1);
  pass(2s);
  EXPECT_THAT(notes, IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher::test
