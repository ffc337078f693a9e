// What ranks write, and --dry-run's descriptions of them, on their way to the job's console.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorTest, OutputOfNodesComesToTheJobsConsoleUntilTheyHaveCleanedUp) {
  CoordinatorJob job;
  job.options.job_console = true;
  job.gather();
  job.say(1, hello("b"));
  const auto plan = job.heard_one<control::PrepareAttempt>(1);
  EXPECT_GT(plan.console_window_bytes, 0);
  job.say(1, control::AttemptPrepared{.epoch = 0, .store_port = 0});
  job.say(0, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  const control::ConsoleOutput output{
      .epoch = 0, .error = true, .pieces = {{.writer = control::kWholeLines, .text = "line\n"}}};
  job.say(1, output);
  job.say(1, control::AttemptFailed{.epoch = 0, .message = "no ranks", .exit_status = 1});
  job.say(1, output);  // what its ranks had written before
  job.say(1, control::ConsoleOutput{.epoch = 1, .error = false});
  EXPECT_THAT(job.outputs, ElementsAre(testing::Pair(1, output), testing::Pair(1, output)));
  job.forget_all();
  const control::ConsoleTaken taken{.epoch = 0, .error = true, .messages = 2};
  job.coordinator().output_taken(1, taken);
  job.coordinator().output_taken(7, taken);  // lost meanwhile
  EXPECT_EQ(job.heard_one<control::ConsoleTaken>(1), taken);
}

TEST(CoordinatorTest, TheMoreNodesTheLessEachMaySendToASlowConsole) {
  constexpr int kNodes = 40;
  CoordinatorJob job;
  job.options.job_console = true;
  job.options.membership.min_nodes = job.options.membership.max_nodes = kNodes;
  for (int node = 0; node < kNodes; ++node) job.say(job.connect(), hello(fmt::format("n{}", node)));
  const std::int64_t window = job.heard_one<control::PrepareAttempt>(0).console_window_bytes;
  EXPECT_LE(window * kNodes, std::int64_t{16} << 20U);
  EXPECT_GT(window * kNodes, std::int64_t{15} << 20U);
}

TEST(CoordinatorTest, NodesWithConsolesOfTheirOwnSendNoOutput) {
  CoordinatorJob job;
  job.gather();
  job.say(1, hello("b"));
  EXPECT_EQ(job.heard_one<control::PrepareAttempt>(1).console_window_bytes, 0);
  job.say(1, control::ConsoleOutput{.epoch = 0, .error = false});
  EXPECT_THAT(job.outputs, IsEmpty());
}

TEST(CoordinatorTest, InputGoesToTheNodeOfRankZeroAlone) {
  CoordinatorJob job;
  job.options.input = true;
  job.gather();
  job.say(1, hello("b"));
  EXPECT_TRUE(job.heard_one<control::PrepareAttempt>(0).input);
  EXPECT_FALSE(job.heard_one<control::PrepareAttempt>(1).input);
  EXPECT_THAT(job.inputs, ElementsAre("wanted anew"));
  const control::Input piece{.data = Bytes(3), .end = false};
  job.coordinator().send_input(piece);
  EXPECT_EQ(job.heard_one<control::Input>(0), piece);
  EXPECT_THAT(job.heard(1), IsEmpty());
  job.say(0, control::InputTaken{.bytes = 2});
  job.say(1, control::InputTaken{.bytes = 1});  // none of it is there
  EXPECT_THAT(job.inputs, ElementsAre("wanted anew", "taken 2"));
}

TEST(CoordinatorTest, WithoutInputNobodyIsToldOfAny) {
  CoordinatorJob job;
  job.gather();
  job.say(1, hello("b"));
  EXPECT_FALSE(job.heard_one<control::PrepareAttempt>(0).input);
  job.say(0, control::InputTaken{.bytes = 2});
  EXPECT_THAT(job.inputs, IsEmpty());
}

TEST(CoordinatorTest, DescriptionsComeInTheOrderOfTheNodes) {
  CoordinatorJob job;
  job.run();
  job.say(1, control::RanksStarted{.epoch = 0, .description = "second"});
  EXPECT_THAT(job.descriptions, IsEmpty());
  job.say(0, control::RanksStarted{.epoch = 0, .description = "first"});
  EXPECT_THAT(job.descriptions, ElementsAre("first", "second"));
}

}  // namespace
}  // namespace ddp::launcher::test
