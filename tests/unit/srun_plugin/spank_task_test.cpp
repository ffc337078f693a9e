// The plugin in slurmstepd: what each task gets, and that a task starts whatever fails.
#include <regex>

#include <ddp/topology.hpp>

#include "spank_host_run.hpp"
#include "srun_side/plugin_options.hpp"
#include "support/checkout.hpp"
#include "topology/placement/rank_resources.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::srun_plugin {
namespace {

using test::SpankHostRun;

/// Of a step whose store nobody serves.
StepTicket ticket_without_store() {
  StepTicket ticket;
  ticket.options.enabled = true;
  return ticket;
}

std::string task_file(int task, const char* what) { return "task." + std::to_string(task) + "." + what; }

/// A step of @p tasks with --ddp, unless @p ticket is null.
void prepare(SpankHostRun& run, int tasks, const StepTicket* ticket) {
  test::add_step_environment(run, tasks);
  if (ticket != nullptr) run.environment(kTicketVariable, encode(*ticket));
}

CpuSet affinity(const SpankHostRun& run, int task) {
  CpuSet set;
  for (const std::string& processor : run.seen(task_file(task, "affinity"))) set.insert(std::stoi(processor));
  return set;
}

/// Where two tasks of this machine belong.
std::vector<CpuSet> expected_masks(int tasks) {
  const Topology machine = Topology::live();
  std::vector<CpuSet> masks;
  for (const Placement& placement :
       place(machine, {.num_ranks = tasks,
                      .policy = BindPolicy::numa,
                      .allowed = std::vector<CpuSet>(static_cast<std::size_t>(tasks), topology::affinity_of(0)),
                      .gpus = std::nullopt})) {
    masks.push_back(placement.cpus);
  }
  return masks;
}

TEST(SpankTask, WithoutDdpTasksAreLeftAlone) {
  SpankHostRun run("remote");
  prepare(run, 2, nullptr);
  const auto result = run.run({"true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.err, "");
  for (int task = 0; task < 2; ++task) {
    EXPECT_EQ(run.seen(task_file(task, "environment")), run.seen(task_file(task, "before")));
    EXPECT_EQ(affinity(run, task), topology::affinity_of(0));
  }
}

TEST(SpankTask, WithDdpTasksGetTorchrunsVariables) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 3, &ticket);
  run.environment("MASTER_ADDR", "stale").environment("MASTER_PORT", "1");
  const auto result = run.run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.err, "");
  for (int task = 0; task < 3; ++task) {
    auto variables = run.variables(task_file(task, "environment"));
    const std::map<std::string, std::string> expected{{"RANK", std::to_string(task)},
                                                      {"LOCAL_RANK", std::to_string(task)},
                                                      {"WORLD_SIZE", "3"},
                                                      {"LOCAL_WORLD_SIZE", "3"},
                                                      {"GROUP_RANK", "0"},
                                                      {"GROUP_WORLD_SIZE", "1"},
                                                      {"ROLE_RANK", std::to_string(task)},
                                                      {"ROLE_WORLD_SIZE", "3"},
                                                      {"ROLE_NAME", "default"},
                                                      {"TORCHELASTIC_RUN_ID", "7.0"},
                                                      {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                      {"DDP_BIND", "none"},
                                                      {"GLOO_SOCKET_IFNAME", "lo"},
                                                      {"USERS_OWN", "with spaces = and equals"},
                                                      {"EMPTY", ""}};
    for (const auto& [name, value] : expected) {
      ASSERT_EQ(variables.count(name), 1U) << name;
      EXPECT_EQ(variables[name], value) << name;
    }
    EXPECT_EQ(variables.count(kTicketVariable), 0U) << "the program sees the store's secret";
    EXPECT_EQ(variables["MASTER_ADDR"], "stale") << "there is no store that could take its place";
    EXPECT_EQ(variables["MASTER_PORT"], "1");
    EXPECT_EQ(variables["SLURM_DDP_SETTINGS"].find("MASTER_"), std::string::npos);
    EXPECT_NE(variables["SLURM_DDP_SETTINGS"].find(",DDP_BIND"), std::string::npos);
    EXPECT_EQ(variables.count("OMP_NUM_THREADS"), 1U);
  }
}

TEST(SpankTask, TasksAreBoundAsTheyArePlaced) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 2, &ticket);
  EXPECT_EQ(run.run({"--ddp", "true"}).exit_status, 0);
  const auto masks = expected_masks(2);
  EXPECT_EQ(affinity(run, 0), masks[0]);
  EXPECT_EQ(affinity(run, 1), masks[1]);
}

TEST(SpankTask, WithoutBindingTheyKeepTheirProcessors) {
  SpankHostRun run("remote");
  StepTicket ticket = ticket_without_store();
  ticket.options.bind = BindPolicy::none;
  ticket.options.backend = "gloo";
  prepare(run, 2, &ticket);
  EXPECT_EQ(run.run({"--ddp", "--ddp-bind=none", "true"}).exit_status, 0);
  for (int task = 0; task < 2; ++task) {
    EXPECT_EQ(affinity(run, task), topology::affinity_of(0));
    EXPECT_EQ(run.variables(task_file(task, "environment"))["DDP_BACKEND"], "gloo");
  }
}

TEST(SpankTask, OtherLaunchersVariablesWhereTheyAreAskedFor) {
  SpankHostRun run("remote");
  StepTicket ticket = ticket_without_store();
  ticket.options.as = "horovod,mpi4py";
  ticket.options.imitates_openmpi = ticket.options.imitates_horovod = true;
  prepare(run, 2, &ticket);
  run.environment("SLURM_STEP_TASKS_PER_NODE", "2").environment("DDP_AS", "mpi4py");
  EXPECT_EQ(run.run({"--ddp", "true"}).exit_status, 0);
  auto variables = run.variables(task_file(1, "environment"));
  EXPECT_EQ(variables["DDP_AS"], "horovod,mpi4py");
  EXPECT_EQ(variables["OMPI_COMM_WORLD_RANK"], "1");
  EXPECT_EQ(variables["OMPI_COMM_WORLD_LOCAL_SIZE"], "2");
  EXPECT_EQ(variables["HOROVOD_LOCAL_RANK"], "1");
  EXPECT_EQ(variables["HOROVOD_CROSS_RANK"] + variables["HOROVOD_CROSS_SIZE"], "01");
  EXPECT_EQ(variables["HOROVOD_HOSTNAME"], "n1");
}

TEST(SpankTask, UsersVariablesStay) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 1, &ticket);
  run.environment("OMP_NUM_THREADS", "17").environment("GLOO_SOCKET_IFNAME", "eth7");
  run.environment("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0");
  EXPECT_EQ(run.run({"--ddp", "true"}).exit_status, 0);
  auto variables = run.variables(task_file(0, "environment"));
  EXPECT_EQ(variables["OMP_NUM_THREADS"], "17");
  EXPECT_EQ(variables["GLOO_SOCKET_IFNAME"], "eth7");
  EXPECT_EQ(variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
}

TEST(SpankTask, EachSaysOneLineWhenAsked) {
  SpankHostRun run("remote");
  StepTicket ticket = ticket_without_store();
  ticket.options.verbose = true;
  prepare(run, 2, &ticket);
  const auto result = run.run({"--ddp", "--ddp-verbose", "true"});
  EXPECT_EQ(result.exit_status, 0);
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(result.err,
                HasSubstr(std::string("ddp: rank ") + rank + " of 2 on n1 (local rank " + rank + " of 2): "));
  }
  EXPECT_THAT(result.err, HasSubstr("no PMI"));
}

/// Of torchrun's kind, by name.
launcher::EnvironmentMap torchruns(const std::map<std::string, std::string>& environment) {
  launcher::EnvironmentMap kept;
  for (const auto& [name, value] : environment) {
    const bool slurms = name.starts_with("SLURM") || name.starts_with("PMI");
    if (!slurms && std::regex_search(name, std::regex("RANK|WORLD_SIZE|^TORCH|^MASTER_|^ROLE_")))
      kept.emplace(name, value);
  }
  return kept;
}

/// Runs the node's host while srun's does, with the ticket that srun has made.
test::HostResult run_with_node(SpankHostRun& srun, SpankHostRun& node) {
  const auto prepared = node.run({"true"});  // its settings are written then
  EXPECT_EQ(prepared.exit_status, 0);
  std::string assignments;
  for (const std::string& line : node.seen("before")) assignments += " '" + line + "'";
  const std::string settings = (node.folder() / "settings").string();
  const std::string command = "exec env SPANK_HOST='" + settings + "' SLURM_DDP_STEP=\"$SLURM_DDP_STEP\"" +
                              assignments + " '" + ddp::test::built_program("spank_host") + "' --ddp true";
  return srun.run({"--ddp", "-n2", "sh", "-c", command});
}

TEST(SpankTask, HowRanksEndIsSaidBesideSrun) {
  SpankHostRun node("remote");
  test::add_step_environment(node, 2);
  node.set("ends", "0 3");
  SpankHostRun srun("local");
  srun.set("ends_with", "143");  // of a rank that Slurm has ended then
  const auto result = run_with_node(srun, node);
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_THAT(result.err, StartsWith("srun --ddp: rank 1 on n1 failed with exit code 3; the step ends\n=="));
  for (const char* line : {"sh FAILED\n", "rank      : 1 (local_rank: 1)\n",
                           "exitcode  : 3 (pid: ", "Ended early: rank 0 (n1) ended with exit code 0, "})
    EXPECT_THAT(result.err, HasSubstr(line));
}

TEST(SpankTask, SrunsOwnExitStatusStaysWhereNoRankHasFailedOrTheStepGoesOn) {
  for (const bool fails : {false, true}) {
    SpankHostRun node("remote");
    test::add_step_environment(node, 2);
    node.set("ends", fails ? "0 3" : "0 0");
    SpankHostRun srun("local");
    srun.set("ends_with", "143");
    if (fails) srun.environment("SLURM_KILL_BAD_EXIT", "0");
    EXPECT_EQ(run_with_node(srun, node).exit_status, 143) << fails;
  }
}

TEST(SpankTask, MeetsTheStoreOfSrunAndGetsWhatDdprunGives) {
  SpankHostRun node("remote");
  test::add_step_environment(node, 2);
  SpankHostRun srun("local");
  const auto result = run_with_node(srun, node);
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.err, "");
  const std::string port = node.variables(task_file(0, "environment"))["MASTER_PORT"];
  EXPECT_NE(port, "");
  for (int task = 0; task < 2; ++task) {
    auto variables = node.variables(task_file(task, "environment"));
    auto ddpruns = launcher::worker_environment({},
                                                {.rank = task,
                                                 .world_size = 2,
                                                 .local_rank = task,
                                                 .local_world_size = 2,
                                                 .node_rank = 0,
                                                 .num_nodes = 1,
                                                 .role_rank = task,
                                                 .role_world_size = 2,
                                                 .master_address = "127.0.0.1",
                                                 .master_port = static_cast<std::uint16_t>(std::stoi(port)),
                                                 .agent_serves_store = true,
                                                 .run_id = "7.0"},
                                                {});
    ddpruns.erase("DDP_BIND");
    EXPECT_EQ(torchruns(variables), ddpruns);
  }
}

TEST(SpankTask, AStoreOutOfReachIsSaidOncePerNode) {
  SpankHostRun run("remote");
  StepTicket ticket = ticket_without_store();
  ticket.port = 1;  // nobody listens there
  ticket.secret = std::string(64, '0');
  prepare(run, 2, &ticket);
  const auto result = run.run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, MatchesRegex("ddp: warning: rank 0 on n1: [^\n]*SrunPortRange[^\n]*\n"));
}

TEST(SpankTask, BatchScriptsAndShellsAreLeftAlone) {
  for (const char* step : {"0xfffffffb", "0xfffffffa", "0xfffffffc"}) {
    SpankHostRun run("remote");
    const StepTicket ticket = ticket_without_store();
    prepare(run, 1, &ticket);
    const auto result = run.set("step", step).run({"--ddp", "true"});
    EXPECT_EQ(result.exit_status, 0);
    EXPECT_EQ(result.err, "");
    auto expected = run.seen(task_file(0, "before"));
    std::erase_if(expected, [](const std::string& line) { return line.starts_with(kTicketVariable); });
    EXPECT_EQ(run.seen(task_file(0, "environment")), expected) << step;
    EXPECT_EQ(affinity(run, 0), topology::affinity_of(0));
  }
}

TEST(SpankTask, WithoutItsProgramTasksAreNotBound) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 2, &ticket);
  const auto result = run.set("helper", "/nowhere/ddp-step").run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err,
              MatchesRegex("ddp: warning: rank 0 on n1: tasks of this node are not bound[^\n]*ENOENT[^\n]*\n"));
  for (int task = 0; task < 2; ++task) {
    EXPECT_EQ(affinity(run, task), topology::affinity_of(0));
    EXPECT_EQ(run.variables(task_file(task, "environment"))["RANK"], std::to_string(task));
    EXPECT_EQ(run.variables(task_file(task, "environment")).count("DDP_BIND"), 0U) << "libddp may still bind them";
  }
}

TEST(SpankTask, WithoutSharedMemoryTasksAreNotBoundAndOneSaysSo) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 2, &ticket);
  const auto result = run.set("container", "yes").run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err,
              MatchesRegex("ddp: warning: rank 0 on n1: tasks of this node are not bound[^\n]*job_container[^\n]*\n"));
  for (int task = 0; task < 2; ++task) {
    EXPECT_EQ(affinity(run, task), topology::affinity_of(0));
    EXPECT_EQ(run.variables(task_file(task, "environment"))["RANK"], std::to_string(task));
    EXPECT_EQ(run.variables(task_file(task, "environment"))["GLOO_SOCKET_IFNAME"], "lo") << "each asks for itself";
    EXPECT_EQ(run.variables(task_file(task, "environment")).count("OMP_NUM_THREADS"), 0U);
  }
}

TEST(SpankTask, AnotherVersionsTicketIsSaid) {
  SpankHostRun run("remote");
  prepare(run, 2, nullptr);
  const auto result = run.environment(kTicketVariable, "2;whatever").run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, MatchesRegex("ddp: warning: rank 0 on n1: [^\n]*its version is '2', not 6[^\n]*\n"));
}

TEST(SpankTask, AnotherVersionThatUnderstandsTheTicketIsSaid) {
  SpankHostRun run("remote");
  StepTicket ticket = ticket_without_store();
  ticket.version = "9.8.7";
  prepare(run, 2, &ticket);
  const auto result = run.run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, MatchesRegex("ddp: warning: rank 0 on n1: [^\n]* of 9[.]8[.]7; install one on all\n"));
  EXPECT_EQ(run.variables(task_file(1, "environment"))["RANK"], "1");
}

class SpankTaskFailing : public ::testing::TestWithParam<const char*> {};

TEST_P(SpankTaskFailing, TasksStartAllTheSame) {
  SpankHostRun run("remote");
  const StepTicket ticket = ticket_without_store();
  prepare(run, 2, &ticket);
  const auto result = run.set("fail", GetParam()).run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_LE(result.lines_of_err(), 2) << result.err;
  for (int task = 0; task < 2; ++task) run.seen(task_file(task, "environment"));
}

INSTANTIATE_TEST_SUITE_P(Each, SpankTaskFailing,
                         ::testing::Values("spank_context", "spank_option_register", "spank_get_item", "spank_getenv",
                                           "spank_setenv", "spank_unsetenv"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace ddp::srun_plugin
