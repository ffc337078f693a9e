// Every message of an agent in every phase of a job: what the coordinator sends then, and what it ignores.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

struct PhaseCase {
  const char* name;
  void (CoordinatorJob::*reach)();
};
const PhaseCase kGathering{"gathering", &CoordinatorJob::gather};
const PhaseCase kPreparing{"preparing", &CoordinatorJob::prepare};
const PhaseCase kRunning{"running", &CoordinatorJob::run};
const PhaseCase kFinishing{"finishing", &CoordinatorJob::finish};
void reach_cleaning(CoordinatorJob& job) { job.clean(); }

void reach(CoordinatorJob& job, const std::string& phase) {
  if (phase == "cleaning") return reach_cleaning(job);
  for (const PhaseCase& each : {kGathering, kPreparing, kRunning, kFinishing}) {
    if (phase == each.name) return (job.*each.reach)();
  }
  FAIL() << phase;
}

const char* const kPhases[] = {"gathering", "preparing", "running", "cleaning", "finishing"};

/// What node a may say, and messages that only a coordinator sends.
std::vector<control::Message> messages(int epoch) {
  return {hello("a"),
          control::AttemptPrepared{.epoch = epoch, .store_port = 29500},
          control::RanksStarted{.epoch = epoch, .pids = {11, 12}},
          control::AttemptFailed{.epoch = epoch, .message = "no GPU", .exit_status = 3},
          rank_ended(1, 5, epoch),
          control::RankAborted{.epoch = epoch, .local_rank = 1, .call = {.status = 6, .message = "enough"}},
          control::RankStopped{.epoch = epoch, .local_rank = 1, .signal = SIGSTOP},
          control::AttemptCleaned{.epoch = epoch},
          control::SignalReceived{.signal = SIGTERM, .by_slurm = false},
          control::PrepareAttempt{.epoch = epoch},
          control::StartAttempt{.epoch = epoch},
          control::SignalRanks{.epoch = epoch, .groups = true, .signal = SIGKILL},
          control::EndAttempt{.epoch = epoch},
          control::Finish{},
          control::Fence{.epoch = epoch, .ranks = {0}, .data = {std::byte{1}}, .status = 0},
          control::ModexRequest{.epoch = epoch, .id = 5, .from_node = -1, .rank = 2},
          control::ModexReply{.epoch = epoch, .id = 6, .to_node = 1, .status = 0},
          control::CollectStacks{.epoch = epoch, .limit_ms = 1},
          control::StacksCollected{.epoch = epoch, .groups = {{.ranks = {0}, .tool = "gdb", .text = "x"}}},
          control::ConsoleOutput{.epoch = epoch, .error = false},
          control::ConsoleTaken{.epoch = epoch, .error = false, .messages = 1},
          control::RanksStill{.epoch = epoch, .still = true},
          control::ObserveRanks{.epoch = epoch, .limit_ms = 1},
          control::RanksObserved{.epoch = epoch, .facts = {std::byte{9}}},
          control::Progress{.epoch = epoch},
          control::Resting{.rests = true},
          control::Input{.data = {std::byte{1}}, .end = false},
          control::InputTaken{.bytes = 1},
          control::StepTasks{.ranks = {0}},
          control::RankEndNoted{.epoch = epoch},
          control::JoinTaken{.spare = true},
          control::NodesChange{.epoch = epoch, .waiting = 1},
          control::AllocationHello{.allocation = "8", .host = "a"},
          control::ResizeAsked{.nodes = 1, .host = "a"},
          control::KillRanks{.epoch = epoch, .local_ranks = {1}},
          control::FindAbsent{.epoch = epoch, .name = "ddp.fence.1", .limit_ms = 1000},
          control::AbsentFound{.epoch = epoch, .name = "ddp.fence.1", .ranks = {{.first = 0, .count = 1}}},
          control::WarmWorkersReady{}};
}

struct Answer {
  std::string phase;
  std::string message;
  Texts to_a{};
  Texts to_b{};
};

const Texts kStop{"SignalRanks SIGSTOP groups"};
const Texts kTerm{"SignalRanks SIGTERM groups", "SignalRanks SIGCONT groups"};

/// All others change nothing that agents see.
const std::vector<Answer> kAnswers{
    {"gathering", "Resting", kStop, kStop},
    {"preparing", "Resting", kStop, kStop},
    {"running", "Resting", kStop, kStop},
    {"cleaning", "Resting", kStop, kStop},
    {"gathering", "SignalReceived", {"Finish 143"}, {"Finish 143"}},
    {"preparing", "AttemptPrepared", {"StartAttempt"}, {"StartAttempt"}},
    {"preparing", "AttemptFailed", {"EndAttempt 600000"}, {"EndAttempt 600000"}},
    {"preparing", "SignalReceived", {"EndAttempt 10000"}, {"EndAttempt 10000"}},
    {"preparing", "Fence", {"Fence"}, {}},
    {"preparing", "ModexRequest", {}, {"ModexRequest"}},
    {"preparing", "ModexReply", {}, {"ModexReply"}},
    {"preparing", "FindAbsent", {"FindAbsent"}, {"FindAbsent"}},
    {"running", "AttemptFailed", kTerm, kTerm},
    {"running", "RankEnded", kTerm, kTerm},
    {"running", "RankAborted", kTerm, kTerm},
    {"running", "SignalReceived", kTerm, kTerm},
    {"running", "Fence", {"Fence"}, {}},
    {"running", "ModexRequest", {}, {"ModexRequest"}},
    {"running", "ModexReply", {}, {"ModexReply"}},
    {"running", "FindAbsent", {"FindAbsent"}, {"FindAbsent"}},
    {"cleaning", "SignalReceived", {"EndAttempt 10000"}, {"EndAttempt 10000"}},
    {"cleaning", "Fence", {"Fence"}, {}},
    {"cleaning", "ModexRequest", {}, {"ModexRequest"}},
    {"cleaning", "ModexReply", {}, {"ModexReply"}},
    {"cleaning", "FindAbsent", {"FindAbsent"}, {"FindAbsent"}},
};

Answer expected(const std::string& phase, const std::string& message) {
  for (const Answer& each : kAnswers) {
    if (each.phase == phase && each.message == message) return each;
  }
  return {.phase = phase, .message = message};
}

TEST(CoordinatorMessages, EachInEachPhase) {
  ASSERT_EQ(messages(0).size(), std::variant_size_v<control::Message> - 1);
  for (const std::string phase : kPhases) {
    for (const control::Message& message : messages(0)) {
      SCOPED_TRACE(phase + ": " + control::name_of(message));
      CoordinatorJob job;
      reach(job, phase);
      job.say(0, message);
      const Answer answer = expected(phase, control::name_of(message));
      EXPECT_EQ(job.heard_texts(0), answer.to_a);
      EXPECT_EQ(job.heard_texts(1), answer.to_b);
      EXPECT_TRUE(job.connected(0));
      EXPECT_FALSE(job.coordinator().finished());
    }
  }
}

TEST(CoordinatorMessages, ThoseOfAnotherEpochAreIgnored) {
  for (const std::string phase : kPhases) {
    for (const control::Message& message : messages(1)) {
      // These belong to no attempt.
      if (std::holds_alternative<control::SignalReceived>(message) || std::holds_alternative<control::Resting>(message))
        continue;
      SCOPED_TRACE(phase + ": " + control::name_of(message));
      CoordinatorJob job;
      reach(job, phase);
      job.say(0, message);
      EXPECT_THAT(job.heard_texts(0), IsEmpty());
      EXPECT_THAT(job.heard_texts(1), IsEmpty());
      EXPECT_THAT(job.starts, IsEmpty());
    }
  }
}

TEST(CoordinatorMessages, ThoseOfAnAgentThatTakesNoPartAreIgnored) {
  for (const control::Message& message : messages(0)) {
    if (std::holds_alternative<control::SignalReceived>(message) || std::holds_alternative<control::Hello>(message) ||
        std::holds_alternative<control::AllocationHello>(message) ||
        std::holds_alternative<control::ResizeAsked>(message))
      continue;
    SCOPED_TRACE(control::name_of(message));
    CoordinatorJob job;
    job.run();
    const int stranger = job.connect();
    job.say(stranger, message);
    for (const int link : {0, 1, stranger}) EXPECT_THAT(job.heard_texts(link), IsEmpty());
  }
}

TEST(CoordinatorMessages, RanksThatTheNodeDoesNotHaveAreIgnored) {
  const std::vector<control::Message> wrong{
      rank_ended(kRanksPerNode, 5),
      control::RankAborted{.epoch = 0, .local_rank = kRanksPerNode, .call = {.status = 6, .message = ""}},
      control::RankStopped{.epoch = 0, .local_rank = kRanksPerNode, .signal = SIGSTOP}};
  CoordinatorJob job;
  job.run();
  for (const control::Message& message : wrong) job.say(1, message);
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.end_ranks(0, 0);
  job.end_ranks(1, 0);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 600000"));
  EXPECT_TRUE(job.coordinator().outcome().success());
}

TEST(CoordinatorMessages, AFailedNodeIsNoLongerListenedToButForItsCleaning) {
  CoordinatorJob job;
  job.run();
  job.say(0, control::AttemptFailed{.epoch = 0, .message = "fork", .exit_status = 9});
  job.forget_all();
  for (const control::Message& message : messages(0)) {
    if (std::holds_alternative<control::SignalReceived>(message) || std::holds_alternative<control::Resting>(message))
      continue;
    job.say(0, message);
  }
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  EXPECT_THAT(job.heard_texts(1), IsEmpty());
  job.end_ranks(1, 1);
  EXPECT_THAT(job.heard_texts(0), ElementsAre("EndAttempt 600000"));
  job.say(1, control::AttemptCleaned{.epoch = 0});
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(0, control::AttemptCleaned{.epoch = 0});
  EXPECT_THAT(job.heard_texts(0), ElementsAre("Finish 9"));
  EXPECT_EQ(job.coordinator().outcome().nodes.size(), 1U);
}

TEST(CoordinatorMessages, StartedRanksAreCountedOncePerNode) {
  CoordinatorJob job;
  job.run();
  for (const int link : {1, 1, 0, 0}) job.say(link, control::RanksStarted{.epoch = 0, .pids = {11, 12, 13}});
  EXPECT_THAT(job.starts, ElementsAre("2 of 4 on 2", "4 of 4 on 2"));
}

TEST(CoordinatorMessages, ThePidOfARankIsInItsFailure) {
  CoordinatorJob job;
  job.run();
  job.say(1, control::RanksStarted{.epoch = 0, .pids = {11, 12}});
  job.say(1, rank_ended(1, 5));
  job.end_ranks(0, 0);
  job.end_ranks(1, 0);
  const auto& failures = job.coordinator().outcome().failures;
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].name.rank, 3);
  EXPECT_EQ(failures[0].name.pid, 12);
  EXPECT_EQ(failures[0].name.host, "b");
}

TEST(CoordinatorMessages, AFenceOfAllNodesIsAnsweredWhenAllHaveContributed) {
  CoordinatorJob job;
  job.run();
  job.say(0, control::Fence{.epoch = 0, .data = {std::byte{1}}, .status = 0});
  EXPECT_THAT(job.heard_texts(0), IsEmpty());
  job.say(1, control::Fence{.epoch = 0, .data = {std::byte{2}}, .status = 0});
  for (const int link : {0, 1}) {
    const auto fence = job.heard_one<control::Fence>(link);
    EXPECT_EQ(fence.epoch, 0);
    EXPECT_EQ(fence.data, (Bytes{std::byte{1}, std::byte{2}}));
  }
}

}  // namespace
}  // namespace ddp::launcher::test
