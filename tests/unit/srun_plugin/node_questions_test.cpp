#include "task_side/node_questions.hpp"

#include <ddp/error.hpp>

#include "base/slurm_step.hpp"
#include "support/error_of.hpp"

extern "C" {
#include <slurm/slurm.h>
}

namespace ddp::srun_plugin {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

/// Rank 5 of 8, of which three are on this second node.
Variables slurm() {
  return {{"SLURM_PROCID", "5"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "7"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURMD_NODENAME", "n2"},
          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
          {"SLURM_SRUN_COMM_HOST", "10.9.9.9"}};
}

TaskFacts read(Variables variables) { return read_task_facts(base::Environment{std::move(variables)}, 3); }

TEST(TaskFacts, AreSlurmsOwnNumbers) {
  const TaskFacts facts = read(slurm());
  EXPECT_EQ(facts.rank, 5);
  EXPECT_EQ(facts.world_size, 8);
  EXPECT_EQ(facts.local_rank, 1);
  EXPECT_EQ(facts.local_world_size, 3);
  EXPECT_EQ(facts.node_rank, 1);
  EXPECT_EQ(facts.num_nodes, 2);
  EXPECT_EQ(facts.step, "1234.7");
  EXPECT_EQ(facts.node_list, "n[1-2]");
  EXPECT_EQ(facts.node_name, "n2");
  EXPECT_EQ(facts.srun_address, "10.0.0.1");
}

TEST(TaskFacts, RanksOfTheNodeAreThoseOfItsTasks) {
  Variables variables = slurm();
  variables["SLURM_GTIDS"] = "1,5,7";  // cyclic
  EXPECT_EQ(read(variables).node_ranks, (std::vector<std::int32_t>{1, 5, 7}));
  variables["SLURM_GTIDS"] = "0,2,4";  // of a component, which begins at rank 3
  EXPECT_EQ(read(variables).node_ranks, (std::vector<std::int32_t>{3, 5, 7}));
  for (const char* wrong : {"", "1,5", "1,5,7,9", "1;5;7", "1,5,x"}) {  // as if they were consecutive
    variables["SLURM_GTIDS"] = wrong;
    EXPECT_EQ(read(variables).node_ranks, (std::vector<std::int32_t>{4, 5, 6})) << wrong;
  }
}

TEST(NodeMessages, ComeBackAsTheyWere) {
  const NodeQuestion question{.version = "1",
                              .node_list = "n[0-3]",
                              .port = 60123,
                              .ranks = {0, 4},
                              .metrics_port = 0,
                              .bind = BindPolicy::core,
                              .backend = "gloo"};
  const Bytes bytes = base::encode(question);
  const auto again = base::decode<NodeQuestion>(bytes);
  EXPECT_EQ(again.node_list, question.node_list);
  EXPECT_EQ(again.ranks, question.ranks);
  EXPECT_EQ(again.metrics_port, question.metrics_port);
  EXPECT_EQ(again.bind, question.bind);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(base::decode<NodeQuestion>(std::span{bytes}.first(size)), Error) << size;
  const NodeAnswer answer{.meeting = {.reached = true, .store_address = "10.0.0.1", .store_port = 7},
                          .tasks = {{.cpus = "0-3", .settings = {{"A", "b"}}, .summary = "4 cores"}}};
  const auto same = base::decode<NodeAnswer>(base::encode(answer));
  EXPECT_EQ(same.meeting.store_port, 7);
  ASSERT_EQ(same.tasks.size(), 1U);
  EXPECT_EQ(same.tasks[0].cpus, "0-3");
  EXPECT_EQ(same.tasks[0].settings, answer.tasks[0].settings);
}

TEST(TaskFacts, MissingNumbersAreNamed) {
  for (const char* name :
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"}) {
    Variables variables = slurm();
    variables.erase(name);
    const auto error = ddp::test::error_of([&] { read(variables); });
    ASSERT_TRUE(error) << name << " was not missed";
    EXPECT_EQ(error->code(), ErrorCode::unavailable);
    EXPECT_THAT(error->what(), HasSubstr(name));
  }
}

TEST(TaskFacts, WordsMayBeMissing) {
  Variables variables = slurm();
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURMD_NODENAME"}) {
    variables.erase(name);
  }
  const TaskFacts facts = read(variables);
  EXPECT_EQ(facts.step, "0.0");
  EXPECT_EQ(facts.node_list, "");
  EXPECT_EQ(facts.node_name, "");
}

TEST(TaskFacts, SrunsAddressHasASecondName) {
  Variables variables = slurm();
  variables.erase("SLURM_LAUNCH_NODE_IPADDR");
  EXPECT_EQ(read(variables).srun_address, "10.9.9.9");
  variables["SLURM_LAUNCH_NODE_IPADDR"] = "";
  EXPECT_EQ(read(variables).srun_address, "10.9.9.9");
  variables.erase("SLURM_SRUN_COMM_HOST");
  EXPECT_EQ(read(variables).srun_address, "");
}

TEST(TaskFacts, SlurmsSpecialStepsAreNotTheUsers) {
  EXPECT_TRUE(base::is_user_step(SLURM_MAX_NORMAL_STEP_ID - 1));
  for (const std::uint32_t id :
       {SLURM_MAX_NORMAL_STEP_ID, SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_PENDING_STEP}) {
    EXPECT_FALSE(base::is_user_step(id)) << id;
  }
}

}  // namespace
}  // namespace ddp::srun_plugin
