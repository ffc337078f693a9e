// The plugin in srun, sbatch and salloc: the environment, the options, and what it says.
#include "spank_host_run.hpp"
#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {
namespace {

using test::SpankHostRun;

constexpr int kOptionRefused = 4;  // of spank_host: Slurm adds its own line
constexpr int kRefused = 1;        // by the plugin

void expect_silent(const test::HostResult& result) {
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "");
}

TEST(SpankSrun, WithoutDdpTheEnvironmentStays) {
  SpankHostRun run("local");
  run.with_mpi({"pmix", "pmi2"}).environment("SLURM_CPUS_PER_TASK", "4").environment("DDP_BIND", "wrong word");
  expect_silent(run.run({"-n", "2", "true", "--ddp"}));
  EXPECT_EQ(run.seen("environment"), run.seen("before"));
}

TEST(SpankSrun, WithDdpTasksGetATicketAndPmix) {
  SpankHostRun run("local");
  run.with_mpi({"pmix", "pmi2"}).environment("SLURM_CPUS_PER_TASK", "4");
  expect_silent(run.run({"-n", "2", "--ddp", "--ddp-bind", "core", "--ddp-gpus=one", "--ddp-backend=cpu", "true"}));
  auto variables = run.variables("environment");
  const StepTicket ticket = parse_ticket(variables[kTicketVariable]);
  EXPECT_NE(ticket.port, 0);
  EXPECT_TRUE(ticket.pmi_available);
  EXPECT_EQ(ticket.options.bind, BindPolicy::core);
  EXPECT_EQ(ticket.options.gpus, topology::GpuVisibility::one);
  EXPECT_EQ(ticket.options.backend, "cpu");
  auto expected = run.variables("before");
  expected["SLURM_MPI_TYPE"] = "pmix";
  expected["SRUN_CPUS_PER_TASK"] = "4";
  expected[kTicketVariable] = variables[kTicketVariable];
  EXPECT_EQ(variables, expected);
}

TEST(SpankSrun, StoreServesWhileTheProgramRuns) {
  SpankHostRun run("local");
  EXPECT_EQ(run.run({"--ddp", "sh", "-c", "pgrep -x -P $PPID ddp-step >/dev/null"}).exit_status, 0);
  const StepTicket ticket = parse_ticket(run.variables("environment")[kTicketVariable]);
  SpankHostRun after("local");
  EXPECT_NE(after.run({"bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/" + std::to_string(ticket.port)}).exit_status, 0);
}

TEST(SpankSrun, TheEnvironmentMayAsk) {
  for (const char* name : {"SLURM_DDP", "_SLURM_SPANK_OPTION_ddp_ddp"}) {
    SpankHostRun run("local");
    run.with_mpi({"pmix"}).environment(name, "1").environment("DDP_GPUS", "one");
    expect_silent(run.run({"true"}));
    auto variables = run.variables("environment");
    EXPECT_EQ(parse_ticket(variables[kTicketVariable]).options.gpus, topology::GpuVisibility::one);
    auto expected = run.variables("before");
    expected["SLURM_MPI_TYPE"] = "pmix";
    expected[kTicketVariable] = variables[kTicketVariable];
    EXPECT_EQ(variables, expected) << name;
  }
  SpankHostRun wrong("local");
  const auto result = wrong.environment("SLURM_DDP", "1").environment("DDP_GPUS", "two").run({"true"});
  EXPECT_EQ(result.exit_status, kRefused);
  EXPECT_THAT(result.err, AllOf(HasSubstr("DDP_GPUS"), HasSubstr("all, one, none")));
}

// salloc starts its shell by srun.
TEST(SpankSrun, AnInteractiveShellNeedsNoStore) {
  SpankHostRun run("local");
  run.set("step", "0xfffffffa").environment("SLURM_DDP", "1");
  expect_silent(run.run({"true"}));
  EXPECT_EQ(run.variables("environment").count(kTicketVariable), 0U);
}

TEST(SpankSrun, ComponentsAndSlurmConfAreMinded) {
  SpankHostRun run("local");
  run.with_mpi({"pmix", "pmi2"});
  expect_silent(run.run({"--ddp", "true", ":", "--ddp", "true"}));
  EXPECT_EQ(run.variables("environment")["SLURM_MPI_TYPE"], "pmi2");
  SpankHostRun pmix_already("local");
  pmix_already.with_mpi({"pmix", "pmi2"}).set("mpi_default", "pmix_v4");
  expect_silent(pmix_already.run({"--ddp", "true"}));
  EXPECT_EQ(pmix_already.variables("environment").count("SLURM_MPI_TYPE"), 0U);
  SpankHostRun users("local");
  users.with_mpi({"pmix"}).environment("SLURM_MPI_TYPE", "none");
  expect_silent(users.run({"--ddp", "true"}));
  EXPECT_EQ(users.variables("environment")["SLURM_MPI_TYPE"], "none");
}

TEST(SpankSrun, VariablesAreDefaultsAndOptionsComeLater) {
  SpankHostRun run("local");
  run.environment("DDP_BIND", "socket").environment("DDP_GPUS", "none").environment("DDP_BACKEND", "gloo");
  expect_silent(run.run({"--ddp-gpus=one", "--ddp", "true"}));
  const StepTicket ticket = parse_ticket(run.variables("environment")[kTicketVariable]);
  EXPECT_EQ(ticket.options.bind, BindPolicy::socket);
  EXPECT_EQ(ticket.options.gpus, topology::GpuVisibility::one);
  EXPECT_EQ(ticket.options.backend, "gloo");
}

TEST(SpankSrun, AWrongWordEndsSrunWithTheAcceptedOnes) {
  struct Case {
    const char* option;
    const char* words;
  };
  for (const auto& [option, words] :
       {Case{"--ddp-bind=nuam", "numa, core, socket, none"}, Case{"--ddp-gpus=2", "all, one, none"},
        Case{"--ddp-backend=MPI", "auto, host, cpu, gloo, nccl, ddp"}}) {
    for (const char* context : {"local", "allocator"}) {
      SpankHostRun run(context);
      const auto result = run.run({"--ddp", option, "true"});
      EXPECT_EQ(result.exit_status, kOptionRefused) << option;
      EXPECT_EQ(result.lines_of_err(), 1) << result.err;
      EXPECT_THAT(result.err, HasSubstr(words));
    }
  }
  SpankHostRun run("local");
  const auto result = run.environment("DDP_BIND", "nuam").run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, kRefused);
  EXPECT_THAT(result.err, AllOf(HasSubstr("DDP_BIND"), HasSubstr("did you mean 'numa'")));
}

TEST(SpankSrun, AHopelessCommandEndsSrunBeforeTheAllocation) {
  SpankHostRun run("local");
  const auto refused = run.run({"--ddp", "-N2", "torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py"});
  EXPECT_EQ(refused.exit_status, kRefused);
  EXPECT_EQ(refused.lines_of_err(), 1) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("write srun --ddp --ntasks-per-node=2 python train.py"));
  SpankHostRun without("local");
  without.environment("SLURM_DDP", "0").environment("_SLURM_SPANK_OPTION_ddp_ddp", "");
  EXPECT_THAT(without.run({"torchrun", "--nnodes=2", "train.py"}).err, Not(HasSubstr("--ntasks-per-node")));
}

TEST(SpankSrun, AllContextsWithOptionsRegisterTheSame) {
  for (const char* context : {"local", "allocator", "remote"}) {
    SpankHostRun run(context);
    test::add_step_environment(run, 1);
    expect_silent(run.run({"true"}));
    EXPECT_THAT(
        run.seen("options"),
        ElementsAre("ddp - 0", "ddp-bind numa|core|socket|none 1", "ddp-gpus all|one|none 1",
                    "ddp-backend auto|host|cpu|gloo|nccl|ddp|PLUGIN 1", "ddp-as NAMES 1", "ddp-imitate NAMES 1",
                    "ddp-verbose - 0", "ddp-dump - 2", "ddp-doctor - 0", "ddp-metrics - 2", "ddp-event-log FILE 1",
                    "ddp-event-log-interval SECONDS 1", "ddp-hang-report-after SECONDS 1"))
        << context;
  }
  for (const char* context : {"slurmd", "job_script"}) {
    SpankHostRun run(context);
    expect_silent(run.run());
    EXPECT_THAT(run.seen("options"), IsEmpty()) << context;
    EXPECT_EQ(run.seen("environment"), run.seen("before"));
  }
}

// The output of "sbatch --parsable" is read by programs.
TEST(SpankSrun, SbatchAndSallocHearNothing) {
  SpankHostRun run("allocator");
  run.with_mpi({"pmix"});
  expect_silent(run.run({"--ddp", "--ddp-bind=core", "--ddp-verbose", "script.sh"}));
  EXPECT_EQ(run.seen("environment"), run.seen("before"));
}

TEST(SpankSrun, WithoutItsProgramTheStepStarts) {
  SpankHostRun run("local");
  const auto result = run.set("helper", "/nowhere/ddp-step").run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.err, MatchesRegex("srun: ddp: warning: [^\n]*/nowhere/ddp-step[^\n]*ENOENT[^\n]*\n"));
  EXPECT_EQ(parse_ticket(run.variables("environment")[kTicketVariable]).port, 0);
}

class SpankSrunFailing : public ::testing::TestWithParam<const char*> {};

TEST_P(SpankSrunFailing, TheProgramRunsAllTheSame) {
  for (const char* context : {"local", "allocator"}) {
    SpankHostRun run(context);
    const auto result = run.set("fail", GetParam()).run({"--ddp", "sh", "-c", "echo it ran"});
    EXPECT_EQ(result.exit_status, 0) << result.err;
    EXPECT_EQ(result.out, context == std::string("local") ? "it ran\n" : "");
    EXPECT_LE(result.lines_of_err(), 1) << result.err;
  }
}

INSTANTIATE_TEST_SUITE_P(Each, SpankSrunFailing,
                         ::testing::Values("spank_context", "spank_option_register", "spank_get_item", "spank_getenv",
                                           "spank_setenv", "spank_unsetenv"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace ddp::srun_plugin
