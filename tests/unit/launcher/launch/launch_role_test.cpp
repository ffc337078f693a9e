// Which of its roles ddprun takes, from options and environment alone.
#include "launch/launch_role.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

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
  const base::Environment environment{std::move(variables)};
  return decide_role(some, environment, base::EngineTask::read(environment));
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
  EXPECT_THAT(decision.components, ElementsAre(4));
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
}

TEST(RoleTest, WithMoreNodesThanTheAllocationHasOtherAllocationsMayBringThem) {
  RoleDecision decision = decide(with_nodes(2, 8), allocation(4));
  EXPECT_EQ(decision.nodes.min, 2);
  EXPECT_EQ(decision.nodes.max, 8);
  EXPECT_EQ(decision.absent, 4);
  EXPECT_EQ(decision.agents(), 4);
  EXPECT_THAT(decision.components, ElementsAre(4));
  EXPECT_TRUE(decision.joinable());
  decision = decide(with_nodes(1, 2), allocation(1));
  EXPECT_EQ(decision.role, LaunchRole::frontend) << "of one node, as others may join";
  EXPECT_EQ(decision.absent, 1);
  EXPECT_FALSE(decide(with_nodes(4, 4), allocation(4)).joinable());
  EXPECT_FALSE(decide(options(), allocation(4)).joinable());
  LaunchOptions listed = with_nodes(1, 8);
  listed.hosts = {{.name = "n0"}, {.name = "n1"}};
  EXPECT_FALSE(decide(listed).joinable());
  const auto rules =
      coordinator_options(with_nodes(2, 8), decide(with_nodes(2, 8), allocation(4)), base::Environment{allocation(4)})
          .membership;
  EXPECT_EQ(rules.absent, 4);
  EXPECT_EQ(rules.allocation, "7");
  EXPECT_TRUE(rules.open());
  EXPECT_FALSE(rules.replaceable);
}

TEST(RoleTest, SparesAreHeldBackFromTheNodesThatThereAre) {
  LaunchOptions some = options();
  some.spares = 1;
  RoleDecision decision = decide(some, allocation(4));
  EXPECT_EQ(decision.nodes.min, 3);
  EXPECT_EQ(decision.nodes.max, 3);
  EXPECT_EQ(decision.agents(), 4);
  EXPECT_THAT(decision.components, ElementsAre(4));
  EXPECT_EQ(decide(some, allocation(2)).role, LaunchRole::frontend) << "of one node with ranks";
  EXPECT_EQ(decide(some, step(4, "1(x4)")).nodes.min, 3);
  some = with_nodes(2, 4);
  some.spares = 2;
  decision = decide(some, allocation(5));
  EXPECT_EQ(decision.nodes.min, 2);
  EXPECT_EQ(decision.nodes.max, 4);
  EXPECT_EQ(decision.absent, 1);
  EXPECT_EQ(decision.agents(), 5);
  EXPECT_THAT(refusal(some, allocation(3)),
              HasSubstr("--spares=2 with --nnodes=2:4 was given, but the allocation has 3 nodes; hold back fewer"));
  EXPECT_THAT(refusal(some, step(3, "1(x3)")), HasSubstr("but this Slurm step has 3 nodes"));
  some.hosts = {{.name = "n0"}, {.name = "n1"}, {.name = "n2"}, {.name = "n3"}};
  EXPECT_EQ(decide(some).nodes.max, 2);
  EXPECT_EQ(decide(some).spares, 2);
  some.hosts.pop_back();
  EXPECT_THAT(refusal(some, {}), HasSubstr("but the host list has 3 hosts"));
  some = options();
  some.spares = 1;
  EXPECT_THAT(refusal(some, allocation(1)), HasSubstr("--spares=1 was given, but the allocation has 1 node;"));
  EXPECT_THAT(refusal(some, step(1, "1")), HasSubstr("--spares=1 was given, but this Slurm step has one task"));
  some.rendezvous.endpoint_host = "n0";
  EXPECT_EQ(decide(some, step(1, "1")).role, LaunchRole::endpoint);
}

TEST(RoleTest, AHeterogeneousAllocationHasTheNodesOfItsComponents) {
  Variables variables = allocation(1);  // SLURM_JOB_NUM_NODES is the first one's
  variables["SLURM_HET_SIZE"] = "2";
  variables["SLURM_JOB_ID_HET_GROUP_0"] = "6";
  EXPECT_THAT(decide(options(), variables).components, IsEmpty()) << "they are another job's; this one has one node";
  variables["SLURM_JOB_ID_HET_GROUP_0"] = "7";
  EXPECT_THAT(refusal(options(), variables), HasSubstr("SLURM_JOB_NUM_NODES_HET_GROUP_0 is not set"));
  variables["SLURM_JOB_NUM_NODES_HET_GROUP_0"] = "1";
  variables["SLURM_JOB_NUM_NODES_HET_GROUP_1"] = "3";
  const RoleDecision all = decide(options(), variables);
  EXPECT_EQ(all.role, LaunchRole::frontend);
  EXPECT_EQ(all.nodes.max, 4);
  EXPECT_THAT(all.components, ElementsAre(1, 3));
  Variables shell = variables;  // of salloc
  shell.erase("SLURM_JOB_NUM_NODES");
  shell.erase("SLURMD_NODENAME");
  EXPECT_EQ(decide(options(), shell).role, LaunchRole::frontend);
  EXPECT_THAT(decide(with_nodes(1, 1), shell).components, ElementsAre(1, 0));
  EXPECT_THAT(decide(with_nodes(1, 3), variables).components, ElementsAre(1, 2));
  EXPECT_EQ(decide(with_nodes(1, 1), variables).role, LaunchRole::alone);
  EXPECT_THAT(refusal(with_nodes(5, 5), variables), HasSubstr("the allocation has 4 nodes"));
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

Variables hydra(int tasks, int here = 1) {
  return {{"PMI_FD", "6"},
          {"PMI_RANK", "1"},
          {"PMI_SIZE", std::to_string(tasks)},
          {"MPI_LOCALNRANKS", std::to_string(here)}};
}

Variables open_mpi(int tasks, int here = 1) {
  return {{"PMIX_NAMESPACE", "123"},
          {"PMIX_RANK", "1"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(tasks)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(here)}};
}

TEST(RoleTest, ATaskOfAnotherEngineIsTheAgentOfItsNode) {
  const Variables flux{{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "3"}, {"FLUX_JOB_NNODES", "3"}, {"PMI_FD", "6"}};
  const Variables pals{
      {"PALS_RANKID", "1"}, {"PMI_SIZE", "3"}, {"PMI_LOCAL_SIZE", "1"}, {"PMIX_NAMESPACE", "x"}, {"PMIX_RANK", "1"}};
  Variables jsrun = open_mpi(3);
  jsrun.insert({{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "3"}, {"JSM_NAMESPACE_LOCAL_SIZE", "1"}});
  for (const auto& [variables, engine] :
       {std::pair{hydra(3), "Hydra"}, {open_mpi(3), "Open MPI"}, {flux, "Flux"}, {pals, "PALS"}, {jsrun, "jsrun"}}) {
    const RoleDecision decision = decide(options(), variables);
    EXPECT_EQ(decision.role, LaunchRole::step_agent) << engine;
    EXPECT_EQ(decision.nodes.min, 3) << engine;
    EXPECT_EQ(decision.task, 1) << engine;
    EXPECT_EQ(decision.engine, engine);
    EXPECT_THAT(decision.reason, HasSubstr(engine));
  }
  EXPECT_EQ(decide(options(), hydra(1)).role, LaunchRole::alone);
  EXPECT_THAT(refusal(options(), hydra(4, 2)), AllOf(HasSubstr("this job of Hydra has 4 tasks, several on a node (2"),
                                                     HasSubstr("-ppn 1"), HasSubstr("--standalone")));
  EXPECT_THAT(refusal(with_nodes(2, 2), open_mpi(3)), HasSubstr("this job of Open MPI has 3 nodes"));
  EXPECT_THAT(refusal(options(), {{"MPI_LOCALNRANKS", "1"}, {"PMI_PORT", "n0:1"}, {"PMI_ID", "1"}}),
              HasSubstr("without -pmi-port"));
  Variables without = hydra(3);
  without.erase("PMI_FD");
  EXPECT_THAT(refusal(options(), without), HasSubstr("no PMI"));
}

TEST(RoleTest, EnginesInsideSlurmAndWorkersOfOthersAreToldApart) {
  Variables inside = step(2, "1(x2)");  // mpiexec's daemons are such a step
  inside.erase("PMIX_NAMESPACE");
  inside.merge(hydra(3));
  EXPECT_EQ(decide(options(), inside).engine, "Hydra");
  EXPECT_EQ(decide(options(), inside).nodes.min, 3);
  Variables around = step(2, "1(x2)");  // srun in a task of mpirun
  around.merge(open_mpi(3));
  EXPECT_EQ(decide(options(), around).engine, "");
  EXPECT_EQ(decide(options(), around).nodes.min, 2);
  Variables worker = hydra(3);
  worker["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(decide(options(), worker).role, LaunchRole::alone);
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
  batch_worker["DDPRUN_SLURM_JOB"] = batch_worker["SLURM_JOB_ID"];
  EXPECT_EQ(decide(options(), batch_worker).role, LaunchRole::alone);
}

TEST(RoleTest, AJobThatAWorkerSubmittedIsNoWorker) {
  for (const char* submitters : {"6", ""}) {  // of another job, and outside Slurm
    Variables batch = allocation(4);
    batch["TORCHELASTIC_RUN_ID"] = "none";
    batch["DDPRUN_SLURM_JOB"] = submitters;
    EXPECT_EQ(decide(options(), batch).role, LaunchRole::frontend);
    Variables task = step(4, "1(x4)");
    task["TORCHELASTIC_RUN_ID"] = "none";
    task["DDPRUN_SLURM_JOB"] = submitters;
    EXPECT_EQ(decide(options(), task).role, LaunchRole::step_agent);
  }
}

// ---- host list ----------------

LaunchOptions with_hosts(int number) {
  LaunchOptions some = options();
  for (int i = 0; i < number; ++i) some.hosts.push_back({.name = "h" + std::to_string(i)});
  return some;
}

TEST(RoleTest, AHostListMakesAFrontThatWinsOverAnAllocation) {
  for (const Variables& variables : {Variables{}, allocation(4)}) {
    const RoleDecision decision = decide(with_hosts(3), variables);
    EXPECT_EQ(decision.role, LaunchRole::frontend);
    EXPECT_TRUE(decision.by_hosts);
    EXPECT_EQ(decision.nodes.min, 3);
    EXPECT_EQ(decision.nodes.max, 3);
  }
  EXPECT_FALSE(decide(options(), allocation(4)).by_hosts);
}

TEST(RoleTest, NodesAreTheFirstOfTheHostList) {
  LaunchOptions some = with_hosts(3);
  some.nodes_given = true;
  some.nodes = {.min = 2, .max = 9};
  EXPECT_EQ(decide(some).nodes.min, 2);
  EXPECT_EQ(decide(some).nodes.max, 3);
  some.nodes = {.min = 4, .max = 4};
  EXPECT_THAT(refusal(some, {}), HasSubstr("--nnodes=4 was given, but the host list has 3 hosts"));
}

TEST(RoleTest, AHostListInAStepOfSeveralTasksIsRefused) {
  EXPECT_THAT(refusal(with_hosts(2), step(2, "1(x2)")), HasSubstr("2 tasks, and each would start the ranks"));
  EXPECT_EQ(decide(with_hosts(2), step(1, "1")).role, LaunchRole::frontend);
}

TEST(RoleTest, AnAgentKnowsThatItIsOfAHostList) {
  EXPECT_TRUE(decide(options(), {{"DDPRUN_AGENT", "n0;1;ab"}, {"DDPRUN_AGENT_HOST", "0:2"}}).by_hosts);
  EXPECT_FALSE(decide(options(), {{"DDPRUN_AGENT", "n0;1;ab"}}).by_hosts);
}

}  // namespace

// Folders of log files say whose they are: the user's name for the run, or Slurm's.

namespace {

LaunchOptions named(const std::string& run_id) {
  LaunchOptions options;
  options.rendezvous.run_id = run_id;
  return options;
}

const base::Environment kBatch{{{"SLURM_JOB_ID", "1234"}, {"SLURM_PROCID", "0"}}};
const base::Environment kStep{{{"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "2"}}};

TEST(LogName, OutsideSlurmItIsTheRunId) {
  EXPECT_EQ(log_name(LaunchOptions{}, base::Environment{{}}), "none");
  EXPECT_EQ(log_name(named("run7"), base::Environment{{}}), "run7");
}

TEST(LogName, SlurmsJobNamesItAndTheStepThatTheUserMade) {
  EXPECT_EQ(log_name(LaunchOptions{}, kBatch), "1234");
  EXPECT_EQ(log_name(LaunchOptions{}, kStep), "1234.2");
  const base::Environment interactive{{{"SLURM_JOB_ID", "1234"}, {"SLURM_STEP_ID", "4294967290"}}};
  EXPECT_EQ(log_name(LaunchOptions{}, interactive), "1234");
}

TEST(LogName, AGivenRunIdWins) { EXPECT_EQ(log_name(named("run7"), kStep), "run7"); }

TEST(LogName, TheRandomRunIdOfStandaloneDoesNot) {
  LaunchOptions standalone = named("0123456789abcdef");
  standalone.standalone = true;
  EXPECT_EQ(log_name(standalone, kStep), "1234.2");
  EXPECT_EQ(log_name(standalone, base::Environment{{}}), "0123456789abcdef");
}

}  // namespace

}  // namespace ddp::launcher
