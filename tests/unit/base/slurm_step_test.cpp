// Which Slurm step an environment describes.
#include "base/slurm_step.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include <ddp/error.hpp>

namespace ddp::base {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

SlurmStep read(Variables variables) { return SlurmStep::read(Environment{std::move(variables)}); }

/// Rank 5 of 8, of which three are on this second node.
Variables task() {
  return {{"SLURM_JOB_ID", "1234"},
          {"SLURM_STEP_ID", "7"},
          {"SLURM_PROCID", "5"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "5,3"},
          {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURMD_NODENAME", "n2"}};
}

TEST(SlurmStep, ATaskOfAStep) {
  const SlurmStep step = read(task());
  EXPECT_EQ(step.kind, SlurmStep::Kind::user);
  EXPECT_TRUE(step.is_task());
  EXPECT_EQ(step.name, "1234.7");
  EXPECT_EQ(step.rank, 5);
  EXPECT_EQ(step.num_tasks, 8);
  EXPECT_EQ(step.local_rank, 1);
  EXPECT_EQ(step.node_rank, 1);
  EXPECT_EQ(step.num_nodes, 2);
  EXPECT_EQ(step.tasks_per_node, "5,3");
  EXPECT_EQ(step.node_list, "n[1-2]");
  EXPECT_EQ(step.node_name, "n2");
}

TEST(SlurmStep, AWorkerOfALauncherInATaskIsNoTask) {
  Variables worker = task();
  worker.erase("SLURM_PROCID");
  EXPECT_EQ(read(worker).kind, SlurmStep::Kind::user);
  EXPECT_FALSE(read(worker).is_task());
}

TEST(SlurmStep, NoStep) {
  EXPECT_EQ(read({}).kind, SlurmStep::Kind::none);
  EXPECT_EQ(read({}).rank, std::nullopt);
  for (const char* id : {"", "batch", "-1", "1 ", "4294967296"}) {
    Variables variables = task();
    variables["SLURM_STEP_ID"] = id;
    EXPECT_EQ(read(variables).kind, SlurmStep::Kind::none) << "'" << id << "'";
    EXPECT_FALSE(read(variables).is_task());
  }
}

TEST(SlurmStep, BatchScriptsAndInteractiveShellsAreNotTheUsers) {
  // from SLURM_MAX_NORMAL_STEP_ID on; SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_PENDING_STEP
  for (const char* id : {"4294967280", "4294967290", "4294967291", "4294967292", "4294967293"}) {
    Variables variables = task();
    variables["SLURM_STEP_ID"] = id;
    EXPECT_EQ(read(variables).kind, SlurmStep::Kind::special) << id;
    EXPECT_FALSE(read(variables).is_task()) << id;
  }
  Variables last = task();
  last["SLURM_STEP_ID"] = "4294967279";
  EXPECT_TRUE(read(last).is_task());
}

TEST(SlurmStep, NumbersAreNumbers) {
  for (const char* name :
       {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES"}) {
    Variables variables = task();
    variables[name] = "x";
    EXPECT_THROW(read(variables), Error) << name;
  }
}

}  // namespace
}  // namespace ddp::base
