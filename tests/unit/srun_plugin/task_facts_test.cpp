#include "task_side/task_facts.hpp"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/slurm_step.hpp"
#include "srun_side/slurm_spank.hpp"

namespace ddp::srun_plugin {
namespace {

using ::testing::HasSubstr;
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

TEST(TaskFacts, MissingNumbersAreNamed) {
  for (const char* name :
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"}) {
    Variables variables = slurm();
    variables.erase(name);
    try {
      read(variables);
      ADD_FAILURE() << name << " was not missed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
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
