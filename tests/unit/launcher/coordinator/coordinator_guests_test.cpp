// Nodes of another Slurm allocation: how they join, and how its end is their leave.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

control::Hello agent_of(const std::string& allocation, const std::string& host, std::int64_t order) {
  control::Hello joining = hello(host);
  joining.allocation = allocation;
  joining.order = order;
  return joining;
}

/// Nodes a and b of Slurm job 7 run; two more may join.
void run_allocation(CoordinatorJob& job) {
  job.options.membership.min_nodes = 1;
  job.options.membership.max_nodes = 4;
  job.options.membership.absent = 2;
  job.options.membership.allocation = "7";
  job.options.membership.joinable = true;
  job.connect();
  job.connect();
  for (const int link : {0, 1}) job.say(link, agent_of("7", link == 0 ? "a" : "b", link));
  for (const int link : {1, 0}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.forget_all();
}

/// Node c of Slurm job 8 joins.
int bring_in(CoordinatorJob& job) {
  const int guest = job.connect();
  job.say(guest, agent_of("8", "c", 0));
  EXPECT_THAT(job.heard_texts(guest), ElementsAre("JoinTaken"));
  job.pass(2s);
  job.end_generation();
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 2 of 2, with c"));
  for (const int link : {guest, 1, 0}) job.say(link, control::AttemptPrepared{.epoch = 1, .store_port = 29500});
  job.forget_all();
  return guest;
}

TEST(CoordinatorGuests, TheEndOfAnotherAllocationIsItsNodesLeave) {
  for (const bool by_slurm : {true, false}) {  // scancel; SIGTERM to the ddprun that has started the agents
    CoordinatorJob job;
    job.options.resize = {.how = ResizeManner::How::signal, .signal = SIGUSR2, .grace = 60s};
    run_allocation(job);
    const int front = job.connect();
    job.say(front, control::AllocationHello{.allocation = "8", .host = "c", .pid = 9});
    EXPECT_THAT(job.heard_texts(front), ElementsAre("JoinTaken"));
    const int guest = bring_in(job);
    job.say(by_slurm ? guest : front, control::SignalReceived{.signal = SIGTERM, .by_slurm = by_slurm});
    EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0 pending", "SignalRanks SIGUSR2"));
    job.pass(16s);
    const testing::Matcher<Texts> nothing = IsEmpty();  // Slurm does not wait for long
    EXPECT_THAT(job.heard_texts(0),
                by_slurm ? testing::Matcher<Texts>(Contains("SignalRanks SIGTERM groups")) : nothing);
    for (const int link : {0, 1, guest}) job.end_ranks(link, 0, 1);
    job.forget_all();
    for (const int link : {0, 1, guest}) job.say(link, control::AttemptCleaned{.epoch = 1});
    EXPECT_THAT(job.heard_texts(guest), ElementsAre("Finish 0"));
    EXPECT_EQ(job.goings.back(), "generation 2: 2 of 3, without c");
    job.lose(front);
    EXPECT_THAT(job.notes, testing::Not(Contains(HasSubstr("lost"))));
  }
}

TEST(CoordinatorGuests, RanksThatSlurmSignalsWithTheirAgentHaveNotFailed) {
  for (const bool agent_first : {true, false}) {
    for (const bool by_signal : {true, false}) {
      CoordinatorJob job;
      run_allocation(job);
      const int guest = bring_in(job);
      const control::SignalReceived signal{.signal = SIGTERM, .by_slurm = true};
      if (agent_first) job.say(guest, signal);
      for (int local = 0; local < kRanksPerNode; ++local) {
        control::RankEnded ended = rank_ended(local, by_signal ? SIGTERM : 143, 1);
        ended.end.by_signal = by_signal;
        job.say(guest, ended);
      }
      if (!agent_first) {
        job.say(1, rank_ended(0, 1, 1));  // it has lost them
        job.pass(1s);
        EXPECT_THAT(job.heard_texts(0), IsEmpty());
        job.say(guest, signal);
      }
      EXPECT_THAT(job.heard_texts(0), Contains("SignalRanks SIGTERM groups"));
      for (const int link : {0, 1}) job.end_ranks(link, 143, 1);
      for (const int link : {0, 1, guest}) job.say(link, control::AttemptCleaned{.epoch = 1});
      EXPECT_EQ(job.goings.back(), "generation 2: 2 of 3, without c");
      EXPECT_THAT(job.restarts, IsEmpty());
    }
  }
}

TEST(CoordinatorGuests, RanksOfAnotherAllocationThatSomebodyElseEndsHaveFailed) {
  CoordinatorJob job;
  run_allocation(job);
  const int guest = bring_in(job);
  job.say(guest, rank_ended(0, 143, 1));
  job.pass(1s);
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.pass(1s);
  EXPECT_THAT(job.heard_texts(0), Contains("SignalRanks SIGTERM groups"));
  for (const int link : {guest, 0, 1}) job.end_ranks(link, 143, 1);
  EXPECT_EQ(job.coordinator().exit_status(), 143);
}

TEST(CoordinatorGuests, WhatElseEndsTheJobWaitsForNoWordOfSlurm) {
  CoordinatorJob job;
  run_allocation(job);
  const int guest = bring_in(job);
  job.say(guest, rank_ended(0, 143, 1));
  job.say(0, control::SignalReceived{.signal = SIGTERM, .by_slurm = true});
  job.say(guest, rank_ended(1, 143, 1));
  for (const int link : {0, 1}) job.end_ranks(link, 143, 1);
  EXPECT_THAT(job.heard_texts(0), Contains(testing::StartsWith("EndAttempt")));
}

TEST(CoordinatorGuests, AnAllocationThatCannotJoinHearsWhyBeforeItStartsAgents) {
  CoordinatorJob fixed;
  fixed.run();
  const int late = fixed.connect();
  fixed.say(late, control::AllocationHello{.allocation = "8", .host = "c", .pid = 9});
  EXPECT_EQ(fixed.heard_one<control::Finish>(late).message,
            "the job's nodes are fixed (--nnodes MIN:MAX lets others join)");
  CoordinatorJob full;
  full.options.membership.max_nodes = 2;
  run_allocation(full);
  for (int order = 0; order < 6; ++order) full.say(full.connect(), agent_of("8", "c", order));
  const int more = full.connect();
  full.say(more, control::AllocationHello{.allocation = "9", .host = "d", .pid = 9});
  EXPECT_EQ(full.heard_one<control::Finish>(more).message, "the job already has its 4 nodes and as many spares");
}

}  // namespace
}  // namespace ddp::launcher::test
