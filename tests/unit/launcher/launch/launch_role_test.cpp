// Which of its roles ddprun takes, from options and environment alone.
#include "launch/launch_role.hpp"

#include <gmock/gmock.h>

#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

LaunchOptions options() {
  LaunchOptions some;
  some.command = {"train.py"};
  return some;
}

LaunchOptions with_nodes(int min, int max) {
  LaunchOptions some = options();
  some.nodes = {.min = min, .max = max};
  some.nodes_given = true;
  return some;
}

Variables allocation(int nodes) {
  return {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", std::to_string(nodes)}, {"SLURMD_NODENAME", "n0"}};
}

Variables step(int tasks, const std::string& per_node) {
  Variables variables = allocation(tasks);
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_PROCID"] = "1";
  variables["SLURM_STEP_NUM_TASKS"] = std::to_string(tasks);
  variables["SLURM_STEP_TASKS_PER_NODE"] = per_node;
  variables["PMIX_NAMESPACE"] = "slurm.pmix.7.0";
  return variables;
}

RoleDecision decide(const LaunchOptions& some, Variables variables = {}) {
  return decide_role(some, base::Environment{std::move(variables)});
}

std::string refusal(const LaunchOptions& some, Variables variables) {
  try {
    decide(some, std::move(variables));
  } catch (const ExitError& error) {
    EXPECT_EQ(error.exit_status(), kExitUsage);
    return error.what();
  }
  return "accepted";
}

TEST(RoleTest, IsAloneWithoutSlurmAndNodes) { EXPECT_EQ(decide(options()).role, LaunchRole::alone); }

TEST(RoleTest, IsTheFrontInAnAllocation) {
  const RoleDecision decision = decide(options(), allocation(4));
  EXPECT_EQ(decision.role, LaunchRole::frontend);
  EXPECT_EQ(decision.nodes.min, 4);
  EXPECT_EQ(decision.nodes.max, 4);
}

TEST(RoleTest, ABatchScriptAndAnInteractiveShellAreNoSteps) {
  Variables batch = allocation(4);
  batch["SLURM_PROCID"] = "0";
  EXPECT_EQ(decide(options(), batch).role, LaunchRole::frontend);
  Variables interactive = step(1, "1");
  interactive["SLURM_JOB_NUM_NODES"] = "4";
  interactive["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(decide(options(), interactive).role, LaunchRole::frontend);
}

TEST(RoleTest, OneNodeOfAnAllocationNeedsNoStep) {
  EXPECT_EQ(decide(options(), allocation(1)).role, LaunchRole::alone);
  EXPECT_EQ(decide(with_nodes(1, 1), allocation(4)).role, LaunchRole::alone);
  Variables elsewhere = allocation(1);
  elsewhere.erase("SLURMD_NODENAME");
  EXPECT_EQ(decide(options(), elsewhere).role, LaunchRole::frontend);
}

TEST(RoleTest, AnAllocationGivesAtMostItsNodes) {
  EXPECT_THAT(refusal(with_nodes(5, 5), allocation(4)), HasSubstr("--nnodes=5 was given, but the allocation has 4"));
  const RoleDecision decision = decide(with_nodes(2, 8), allocation(4));
  EXPECT_EQ(decision.nodes.min, 2);
  EXPECT_EQ(decision.nodes.max, 4);
}

TEST(RoleTest, AHeterogeneousAllocationIsRefused) {
  Variables components = allocation(2);
  components["SLURM_HET_SIZE"] = "2";
  EXPECT_THAT(refusal(options(), components), HasSubstr("heterogeneous"));
}

TEST(RoleTest, ATaskOfAStepIsAnAgent) {
  const RoleDecision decision = decide(options(), step(4, "1(x4)"));
  EXPECT_EQ(decision.role, LaunchRole::step_agent);
  EXPECT_EQ(decision.nodes.max, 4);
  EXPECT_EQ(decide(options(), step(1, "1")).role, LaunchRole::alone);
}

TEST(RoleTest, AStepMustHaveOneTaskOnEachNodeAndPmi) {
  EXPECT_THAT(refusal(options(), step(4, "2(x2)")), HasSubstr("--ntasks-per-node=1"));
  EXPECT_THAT(refusal(options(), step(3, "2,1")), HasSubstr("several on a node (2,1)"));
  Variables without = step(4, "1(x4)");
  without.erase("PMIX_NAMESPACE");
  EXPECT_THAT(refusal(options(), without), HasSubstr("--mpi=pmix"));
  without["PMI_FD"] = "5";
  EXPECT_EQ(decide(options(), without).role, LaunchRole::step_agent);
  EXPECT_THAT(refusal(with_nodes(3, 3), step(4, "1(x4)")),
              HasSubstr("--nnodes=3 was given, but this Slurm step has 4"));
  LaunchOptions standalone = options();
  standalone.standalone = true;
  EXPECT_EQ(decide(standalone, step(4, "2(x2)")).role, LaunchRole::alone);
}

TEST(RoleTest, AnEndpointServesWhereAStepHasNoPmi) {
  LaunchOptions some = with_nodes(4, 4);
  some.rendezvous.backend = RendezvousBackend::c10d;
  some.rendezvous.endpoint_host = "n0";
  EXPECT_EQ(decide(some, step(4, "1(x4)")).role, LaunchRole::step_agent);
  Variables without = step(4, "1(x4)");
  without.erase("PMIX_NAMESPACE");
  EXPECT_EQ(decide(some, without).role, LaunchRole::endpoint);
}

TEST(RoleTest, ANamedRendezvousWinsOverAnAllocation) {
  LaunchOptions some = with_nodes(2, 2);
  some.rendezvous.node_rank = 1;
  EXPECT_EQ(decide(some, allocation(4)).role, LaunchRole::endpoint);
  EXPECT_EQ(decide(with_nodes(2, 2)).role, LaunchRole::endpoint);
}

TEST(RoleTest, AgentsOfAFrontAndWorkersStartNoFurtherSteps) {
  Variables agent = step(4, "1(x4)");
  agent[kAgentVariable] = "10.0.0.1;5;00";
  EXPECT_EQ(decide(options(), agent).role, LaunchRole::frontend_agent);
  Variables worker = step(4, "1(x4)");
  worker["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(decide(options(), worker).role, LaunchRole::alone);
  Variables child = step(4, "1(x4)");  // of a task whose launcher has taken its identity away
  child.erase("SLURM_PROCID");
  EXPECT_EQ(decide(options(), child).role, LaunchRole::alone);
  Variables batch_worker = allocation(4);
  batch_worker["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(decide(options(), batch_worker).role, LaunchRole::alone);
}

}  // namespace
}  // namespace ddp::launcher
