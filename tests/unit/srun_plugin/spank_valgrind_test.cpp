// The plugin must not harm the process that loads it: no wrong access, nothing lost, no descriptor left.
#include <regex>

#include "spank_host_run.hpp"
#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {
namespace {

using test::SpankHostRun;

struct SpankValgrind : ::testing::Test {
  void SetUp() override {
#ifdef DDP_SANITIZED
    GTEST_SKIP() << "this build has sanitizers, which valgrind cannot run";
#endif
    if (::access(kValgrind, X_OK) != 0) GTEST_SKIP() << "needs " << kValgrind;
  }
  // Processes that the host forks are watched, ddp-step is not. Descriptors are compared by the host itself.
  static test::Lines watch() {
    return {kValgrind,
            "--quiet",
            "--trace-children=no",
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=definite",
            "--error-exitcode=99"};
  }
  /// Without valgrind's remarks about itself ("--PID-- WARNING: unhandled syscall": valgrind 3.19 and pidfd_open);
  /// what it finds begins with "==PID==".
  static std::string of_host(const std::string& err) {
    return std::regex_replace(err, std::regex("--[0-9]+-- [^\n]*\n"), "");
  }
  static constexpr const char* kValgrind = "/usr/bin/valgrind";
};

TEST_F(SpankValgrind, SrunSideIsClean) {
  SpankHostRun run("local");
  const auto result =
      run.with_mpi({"pmix"}).under(watch()).run({"-n", "2", "--ddp", "--ddp-bind=core", "--ddp-verbose", "true"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(of_host(result.err), "");
  EXPECT_NE(parse_ticket(run.variables("environment")[kTicketVariable]).port, 0);
}

TEST_F(SpankValgrind, SrunSideIsCleanWhenItFails) {
  SpankHostRun run("local");
  const auto result = run.set("helper", "/nowhere/ddp-step").under(watch()).run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.lines_of_err(), 1) << result.err;
}

TEST_F(SpankValgrind, TaskSideIsClean) {
  SpankHostRun run("remote");
  test::add_step_environment(run, 2);
  StepTicket ticket;
  ticket.options.enabled = true;
  const auto result = run.environment(kTicketVariable, encode(ticket)).under(watch()).run({"--ddp", "true"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(of_host(result.err), "");
  EXPECT_EQ(run.variables("task.1.environment")["RANK"], "1");
}

TEST_F(SpankValgrind, FaultsWouldBeSeen) {
  for (const char* fault : {"memory", "access"}) {
    SpankHostRun run("local");
    EXPECT_EQ(run.set("fault", fault).under(watch()).run({"true"}).exit_status, 99) << fault;
  }
  SpankHostRun run("local");
  EXPECT_EQ(run.set("fault", "descriptor").under(watch()).run({"true"}).exit_status, 5);
}

}  // namespace
}  // namespace ddp::srun_plugin
