// Nodes that join a running job, wait for a place, or leave: what agents are told, and what it costs.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

/// What a node hears when its ranks are to end, while @p waiting nodes take no part.
Texts end_of_ranks(int waiting) {
  return {fmt::format("NodesChange {} pending", waiting), "SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"};
}

/// Nodes a and b run; from @p least to @p most may.
void run_open(CoordinatorJob& job, int most, int least = 1) {
  job.own_agent = true;
  job.options.membership.min_nodes = least;
  job.options.membership.max_nodes = most;
  job.options.membership.last_call = 5s;
  job.options.membership.replaceable = true;
  job.connect();
  job.connect();
  for (const int link : {0, 1}) job.say(link, hello(link == 0 ? "a" : "b"));
  job.pass(5s);
  for (const int link : {1, 0}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.forget_all();
}

TEST(CoordinatorResize, ANodeThatJoinsStartsAGenerationWithAllAndSpendsNoRestart) {
  CoordinatorJob job;
  run_open(job, 4);
  const int late = job.connect();
  job.say(late, hello("0"));  // before a by its name, but behind the survivors
  EXPECT_THAT(job.heard_texts(late), ElementsAre("JoinTaken"));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1"));
  job.pass(1900ms);
  EXPECT_THAT(job.heard_texts(0), IsEmpty()) << "more may come";
  job.pass(100ms);
  EXPECT_EQ(job.heard_texts(0), end_of_ranks(1));
  job.forget_all();
  EXPECT_THAT(job.heard_texts(late), IsEmpty());
  job.end_generation();
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 2 of 2, with 0"));
  EXPECT_THAT(job.restarts, IsEmpty());
  const auto plan = job.heard_one<control::PrepareAttempt>(late);
  EXPECT_EQ(plan.epoch, 1);
  EXPECT_EQ(plan.restart_count, 0);
  EXPECT_EQ(plan.node_rank, 2);
  EXPECT_EQ(plan.nodes_lost, 0);
  EXPECT_FALSE(job.coordinator().end_by());
}

TEST(CoordinatorResize, ASpareTakesTheLostNodesPlaceAtOnce) {
  CoordinatorJob job;
  run_open(job, 2);
  const int spare = job.connect();
  job.say(spare, hello("c"));
  EXPECT_THAT(job.heard_texts(spare), ElementsAre("JoinTaken as a spare"));
  job.pass(20s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1"));
  job.lose(1);
  job.end_ranks(0, 143);
  job.say(0, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, with c"));
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(spare).node_rank, 1);
}

TEST(CoordinatorResize, AtTheJobsEndASpareHasNotFailed) {
  CoordinatorJob job;
  run_open(job, 2);
  const int spare = job.connect();
  job.say(spare, hello("c"));
  job.forget_all();
  job.end_ranks(0, 7);
  job.end_ranks(1, 7);
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.heard_texts(spare), ElementsAre("Finish 0"));
  EXPECT_THAT(job.heard_texts(0), Contains("Finish 7"));
}

TEST(CoordinatorResize, ASpareThatIsLostOrLeavesIsNoLossOfTheJob) {
  CoordinatorJob job;
  run_open(job, 2);
  const int lost = job.connect();
  const int leaver = job.connect();
  job.say(lost, hello("c"));
  job.say(leaver, hello("d"));
  job.forget_all();
  job.lose(lost);
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("the agent on c (pid 7) was lost while it waited for a place")));
  job.say(leaver, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  EXPECT_THAT(job.heard_texts(leaver), ElementsAre("Finish 0"));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1", "NodesChange 0"));
  EXPECT_THAT(job.goings, IsEmpty());
}

TEST(CoordinatorResize, ASignalToAnotherProcesssAgentIsItsNodesLeave) {
  for (const int signal : {SIGTERM, SIGINT}) {
    CoordinatorJob job;
    run_open(job, 2);
    job.say(1, control::SignalReceived{.signal = signal, .by_slurm = false});
    EXPECT_EQ(job.heard_texts(0), end_of_ranks(0));
    job.say(1, control::SignalReceived{.signal = signal, .by_slurm = false});
    EXPECT_THAT(job.heard_texts(0), IsEmpty()) << "it leaves already";
    for (const int link : {0, 1}) job.end_ranks(link, 143);
    job.forget_all();
    for (const int link : {0, 1}) job.say(link, kCleaned);
    EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 0"));
    EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, without b"));
    EXPECT_THAT(job.heard_texts(0), ElementsAre("PrepareAttempt"));
  }
}

TEST(CoordinatorResize, SlurmsSignalOneToTheCoordinatorsAgentAndAnyToAStaticJobEndTheJob) {
  const struct {
    int link;
    bool by_slurm;
    bool fixed;
  } cases[] = {{1, true, false}, {0, false, false}, {1, false, true}};
  for (const auto& each : cases) {
    CoordinatorJob job;
    if (each.fixed) {
      job.run();
    } else {
      run_open(job, 2);
    }
    job.say(each.link, control::SignalReceived{.signal = SIGTERM, .by_slurm = each.by_slurm});
    for (const int link : {0, 1}) job.end_ranks(link, 143);
    for (const int link : {0, 1}) job.say(link, kCleaned);
    EXPECT_EQ(job.coordinator().exit_status(), 143);
    EXPECT_THAT(job.heard_texts(1), Contains("Finish 143"));
  }
}

/// Ends for the next generation.
control::RankEnded restarting(int local_rank, int epoch = 0) {
  control::RankEnded message = rank_ended(local_rank, 0, epoch);
  message.end.restarts = true;
  return message;
}

TEST(CoordinatorResize, WithFinishANodeThatJoinsWaitsForTheRanks) {
  CoordinatorJob job;
  job.options.resize = {.how = ResizeManner::How::finish, .grace = 60s};
  run_open(job, 4);
  const int late = job.connect();
  job.say(late, hello("c"));
  job.pass(2s);
  for (const int link : {0, 1})
    EXPECT_THAT(job.heard_texts(link), ElementsAre("NodesChange 1", "NodesChange 1 pending"));
  job.pass(3600s);
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  for (const int local : {0, 1}) job.say(0, restarting(local));
  job.say(1, restarting(0));
  job.pass(59s);
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.pass(1s);
  EXPECT_THAT(job.heard_texts(1), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
  job.say(1, rank_ended(1, 143));
  job.forget_all();
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 2 of 2, with c"));
  EXPECT_THAT(job.restarts, IsEmpty());
  EXPECT_THAT(job.notes, IsEmpty());
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(late).node_rank, 2);
}

TEST(CoordinatorResize, WithFinishANodeThatLeavesWaitsForTheGraceAlsoBehindOneThatJoins) {
  for (const bool joins : {false, true}) {
    CoordinatorJob job;
    job.options.resize = {.how = ResizeManner::How::finish, .grace = 60s};
    run_open(job, 4);
    if (joins) {
      job.say(job.connect(), hello("c"));
      job.pass(20s);
      EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1", "NodesChange 1 pending"));
    }
    job.say(1, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
    job.pass(59s);
    EXPECT_EQ(job.heard_texts(0), joins ? Texts{} : Texts{"NodesChange 0 pending"});
    job.pass(1s);
    EXPECT_THAT(job.heard_texts(0), ElementsAre("SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"));
    job.end_generation();
    EXPECT_THAT(job.goings,
                ElementsAre(joins ? "generation 1: 1 of 2, with c, without b" : "generation 1: 1 of 2, without b"));
  }
}

TEST(CoordinatorResize, WithFinishATrainingThatEndsWhileANodeLeavesIsASuccess) {
  CoordinatorJob job;
  job.options.resize = {.how = ResizeManner::How::finish, .grace = 60s};
  run_open(job, 4);
  job.say(1, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  for (const int link : {0, 1}) job.end_ranks(link, 0);
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.goings, IsEmpty());
  EXPECT_THAT(job.heard_texts(1), Contains("Finish 0"));
  EXPECT_EQ(job.coordinator().exit_status(), 0);
}

TEST(CoordinatorResize, AgentsGetTheLeadersGraceForTheirLeave) {
  using How = ResizeManner::How;
  for (const How how : {How::stop, How::signal}) {
    CoordinatorJob job;
    job.options.resize = {.how = how, .grace = 60s};
    run_open(job, 4);
    const int late = job.connect();
    job.say(late, hello("c"));
    job.pass(2s);
    job.pass(60s);
    job.end_generation();
    const auto plan = job.heard_one<control::PrepareAttempt>(late);
    EXPECT_TRUE(plan.elastic);
    EXPECT_EQ(plan.leave_grace_ms, how == How::stop ? 0 : 60'000);
    EXPECT_EQ(job.heard_one<control::PrepareAttempt>(0).leave_grace_ms, 0) << "the leader's node does not leave";
  }
}

TEST(CoordinatorResize, OnceRanksEndForAChangeItIsNotWithdrawn) {
  CoordinatorJob job;
  job.options.resize = {.how = ResizeManner::How::signal, .signal = SIGUSR2, .grace = 60s};
  run_open(job, 4);
  const int late = job.connect();
  job.say(late, hello("c"));
  job.pass(2s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1", "NodesChange 1 pending", "SignalRanks SIGUSR2"));
  job.say(0, rank_ended(0, 0));
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.lose(late);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0 pending")) << "the other ranks are still to end";
}

TEST(CoordinatorResize, TheFirstRankThatAsksForAnotherStartLetsTheOthersKnow) {
  CoordinatorJob job;
  run_open(job, 2);
  job.say(1, restarting(0));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0 pending"));
}

TEST(CoordinatorResize, WithFinishAChangeIsWithdrawnWithTheNodesThatWantedIt) {
  CoordinatorJob job;
  job.options.resize.how = ResizeManner::How::finish;
  run_open(job, 4);
  const int lost = job.connect();
  const int leaver = job.connect();
  for (const int link : {lost, leaver}) job.say(link, hello(link == lost ? "c" : "d"));
  job.pass(2s);
  job.forget_all();
  job.lose(lost);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1 pending"));
  job.say(leaver, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0"));
  job.say(job.connect(), hello("e"));
  job.pass(2s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1", "NodesChange 1 pending"));
  job.say(0, rank_ended(0, 0));
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1")) << "the job is about to end";
}

TEST(CoordinatorResize, ASparesPlaceIsTheLostNodesOfAJobOfAFixedSize) {
  CoordinatorJob job;
  job.options.membership.spares = 1;
  job.connect();
  job.connect();
  const int spare = job.connect();
  for (const int link : {0, 1}) job.say(link, hello(link == 0 ? "a" : "b"));
  job.say(spare, hello("c"));
  EXPECT_THAT(job.heard_texts(spare), ElementsAre("JoinTaken as a spare"));
  for (const int link : {0, 1}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  EXPECT_THAT(job.heard_texts(0), Contains("NodesChange 1"));
  job.lose(1);
  job.end_ranks(0, 143);
  job.forget_all();
  job.say(0, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, with c"));
  EXPECT_THAT(job.restarts, IsEmpty());
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(spare).node_rank, 1);
  for (const int link : {0, spare}) job.say(link, control::AttemptPrepared{.epoch = 1, .store_port = 29500});
  job.lose(spare);
  job.end_ranks(0, 143, 1);
  job.forget_all();
  job.say(0, control::AttemptCleaned{.epoch = 1});
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1")) << "there is no other spare";
}

TEST(CoordinatorResize, ASignalToTheRanksIsSentOnceAndAFailureMeanwhileIsNoted) {
  CoordinatorJob job;
  job.options.resize = {.how = ResizeManner::How::signal, .signal = SIGUSR2, .grace = 60s};
  run_open(job, 4);
  job.say(1, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0 pending", "SignalRanks SIGUSR2"));
  job.say(0, rank_ended(0, 0));
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(0, rank_ended(1, 3));
  EXPECT_THAT(job.notes, ElementsAre("rank 1 ended with exit code 3 while it was to end for a change of nodes"));
  EXPECT_THAT(job.heard_texts(1), Contains("SignalRanks SIGTERM groups"));
  job.end_ranks(1, 143);
  job.forget_all();
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, without b"));
  EXPECT_THAT(job.restarts, IsEmpty());
}

TEST(CoordinatorResize, RanksMayAskForAnotherGenerationOfTheSameNodes) {
  CoordinatorJob job;
  run_open(job, 2);
  for (const int link : {0, 1}) {
    for (const int local : {0, 1}) job.say(link, restarting(local));
  }
  job.forget_all();
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 2 of 2"));
  EXPECT_THAT(job.restarts, IsEmpty());
}

TEST(CoordinatorResize, ANodeLostWhileRanksEndForOneThatJoinsIsReplacedByIt) {
  CoordinatorJob job;
  run_open(job, 3);
  const int late = job.connect();
  job.say(late, hello("c"));
  job.pass(2s);
  job.lose(1);
  job.end_ranks(0, 143);
  job.forget_all();
  job.say(0, kCleaned);
  EXPECT_THAT(job.goings, ElementsAre("generation 1: 1 of 2, with c"));
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(late).node_rank, 1);
}

TEST(CoordinatorResize, ANewcomerThatCannotStartItsRanksLeavesAndTheOthersGoOn) {
  CoordinatorJob job;
  run_open(job, 3);
  const int late = job.connect();
  job.say(late, hello("c"));
  job.pass(2s);
  job.end_generation();
  job.forget_all();
  job.say(late, control::AttemptFailed{.epoch = 1, .message = "no such program", .exit_status = 127});
  for (const int link : {0, 1, late}) job.say(link, control::AttemptCleaned{.epoch = 1});
  EXPECT_THAT(job.heard_texts(late), Contains("Finish 127"));
  EXPECT_EQ(job.goings.back(), "generation 2: 2 of 3");
  EXPECT_THAT(job.heard_texts(0), Contains("PrepareAttempt"));
}

TEST(CoordinatorResize, ANodeThatDoesNotPrepareItsRanksIsWaitedForOnce) {
  for (const bool newcomer : {true, false}) {
    CoordinatorJob job;
    run_open(job, 3);
    const int late = job.connect();
    job.say(late, hello("c"));
    job.pass(2s);
    job.end_generation();
    job.forget_all();
    const int slow = newcomer ? late : 1;
    for (const int link : {0, 1, late}) {
      if (link != slow) job.say(link, control::AttemptPrepared{.epoch = 1, .store_port = 29500});
    }
    for (int second = 0; second < 120; ++second) {
      for (const int link : {0, 1, late}) job.beat(link);
      job.pass(1s);
    }
    for (const int link : {0, 1, late}) job.say(link, control::AttemptCleaned{.epoch = 1});
    EXPECT_THAT(job.heard_texts(slow), Contains("Finish 1"));
    EXPECT_EQ(job.goings.back(), "generation 2: 2 of 3");
    EXPECT_THAT(job.restarts, IsEmpty());
    EXPECT_EQ(job.heard_texts(0).back(), "PrepareAttempt");
  }
}

TEST(CoordinatorResize, OnceARankHasEndedWellNobodyInterruptsTheOthers) {
  CoordinatorJob job;
  run_open(job, 3);
  job.say(0, rank_ended(0, 0));
  const int late = job.connect();
  job.say(late, hello("c"));
  job.pass(20s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 1"));
  job.say(0, rank_ended(1, 0));
  job.end_ranks(1, 0);
  for (const int link : {0, 1}) job.say(link, kCleaned);
  EXPECT_THAT(job.heard_texts(late), Contains("Finish 0"));
  EXPECT_TRUE(job.coordinator().outcome().success());
}

TEST(CoordinatorResize, WhereTooFewAreLeftItWaitsAndThenFails) {
  CoordinatorJob job;
  job.options.membership.join_timeout = 60s;
  run_open(job, 3, 2);
  job.say(1, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  job.end_generation();
  EXPECT_THAT(job.heard_texts(1), Contains("Finish 0"));
  EXPECT_THAT(job.notes, ElementsAre(HasSubstr("nodes have left; 1 node is left, and --nnodes=2:3 needs 2: waiting")));
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.pass(60s);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 1"));
  EXPECT_THAT(job.coordinator().outcome().nodes.at(0).message, HasSubstr("no other joined within 60 s"));
}

TEST(CoordinatorResize, RanksThatAskForAnotherStartAtOnceEndTheJobWithOneMessage) {
  CoordinatorJob job;
  run_open(job, 2);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const int link : {0, 1}) {
      for (const int local : {0, 1}) job.say(link, restarting(local, epoch));
    }
    for (const int link : {0, 1}) job.say(link, control::AttemptCleaned{.epoch = epoch});
    EXPECT_EQ(job.goings.size(), epoch < 2 ? epoch + 1U : 2U);
    if (epoch == 2) break;
    for (const int link : {1, 0}) job.say(link, control::AttemptPrepared{.epoch = epoch + 1, .store_port = 29500});
  }
  EXPECT_THAT(job.notes, IsEmpty()) << "the report has it";
  ASSERT_EQ(job.coordinator().outcome().nodes.size(), 1U);
  EXPECT_EQ(job.coordinator().outcome().nodes[0].message,
            "3 generations in a row were ended by their ranks (restart_here), or lost a node, within 60 s of their "
            "start: the job ends (--crash-loop)");
  EXPECT_EQ(job.coordinator().exit_status(), 1);
}

/// What ddp-info resize hears.
control::Finish ask(CoordinatorJob& job, int nodes, const std::string& drain = {}) {
  const int link = job.connect();
  job.say(link, control::ResizeAsked{.nodes = nodes, .drain = drain, .host = "h"});
  return job.heard_one<control::Finish>(link);
}

TEST(CoordinatorResize, AUserLetsNodesWaitAndTakePartAgain) {
  CoordinatorJob job;
  run_open(job, 3);
  const control::Finish fewer = ask(job, 1);
  EXPECT_EQ(fewer.exit_status, 0);
  EXPECT_EQ(fewer.message, "b is to wait as a spare");
  EXPECT_EQ(job.heard_texts(0), end_of_ranks(0));
  job.forget_all();
  job.end_generation();
  EXPECT_EQ(job.goings.back(), "generation 1: 1 of 2, b waits, by ddp-info resize on h");
  EXPECT_THAT(job.heard_texts(1), ElementsAre("JoinTaken as a spare"));
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(0).nodes.size(), 1U);
  job.say(0, control::AttemptPrepared{.epoch = 1, .store_port = 29500});
  job.forget_all();
  EXPECT_EQ(ask(job, 3).message, "b is to join; up to 3 will, once other nodes have joined");
  job.end_ranks(0, 143, 1);
  job.say(0, control::AttemptCleaned{.epoch = 1});
  EXPECT_EQ(job.goings.back(), "generation 2: 1 of 1, with b, by ddp-info resize on h");
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(1).node_rank, 1);
  EXPECT_THAT(job.restarts, IsEmpty());
}

TEST(CoordinatorResize, ANodeThatAUserLetWaitTakesALostNodesPlace) {
  CoordinatorJob job;
  run_open(job, 2);
  ask(job, 1);
  job.end_generation();
  job.say(0, control::AttemptPrepared{.epoch = 1, .store_port = 29500});
  job.forget_all();
  job.say(1, control::SignalReceived{.signal = SIGTERM, .by_slurm = false});
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 0")) << "as any spare";
  EXPECT_EQ(ask(job, 1).message, "1 node takes part");
  EXPECT_THAT(job.heard_texts(0), Contains("NodesChange 0")) << "no rank ends for it";
}

TEST(CoordinatorResize, AHostLeavesWhereAUserWantsIt) {
  CoordinatorJob job;
  run_open(job, 2);
  EXPECT_EQ(ask(job, 0, "a").message, "the ddprun that leads the job is on a");
  EXPECT_EQ(ask(job, 0, "z").message, "z is not among the job's nodes");
  EXPECT_EQ(ask(job, 0, "b").message, "b is to leave");
  job.forget_all();
  job.end_generation();
  EXPECT_EQ(job.goings.back(), "generation 1: 1 of 2, by ddp-info resize on h, without b");
  EXPECT_THAT(job.heard_texts(1), ElementsAre("Finish 0"));
}

TEST(CoordinatorResize, AnImpossibleNumberOfNodesIsRefusedAndChangesNothing) {
  CoordinatorJob job;
  run_open(job, 3, 2);
  for (const int nodes : {1, 4}) {
    const control::Finish answer = ask(job, nodes);
    EXPECT_EQ(answer.exit_status, 1);
    EXPECT_EQ(answer.message, fmt::format("the job was started with --nnodes=2:3, so it cannot have {}", nodes));
  }
  EXPECT_THAT(ask(job, 3).message, HasSubstr("2 nodes take part; up to 3 will, once other nodes have joined"));
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(0, rank_ended(0, 0));
  EXPECT_EQ(ask(job, 2).message, "a rank has ended with success, so the job is about to end");
  CoordinatorJob fixed;
  fixed.run();
  EXPECT_EQ(ask(fixed, 1).message, "the job was started with --nnodes=2, so it cannot have 1");
  CoordinatorJob early;
  early.gather();
  EXPECT_EQ(ask(early, 2).message, "the job has not started");
}

TEST(CoordinatorResize, WhoAsksIsHeardAndCanTakeItBack) {
  CoordinatorJob job;
  job.options.resize = {.how = ResizeManner::How::finish, .grace = 60s};
  run_open(job, 2);
  ask(job, 1);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0 pending")) << "it waits for the ranks";
  EXPECT_EQ(ask(job, 2).message, "2 nodes take part");
  EXPECT_THAT(job.heard_texts(0), ElementsAre("NodesChange 0"));
}

}  // namespace
}  // namespace ddp::launcher::test
