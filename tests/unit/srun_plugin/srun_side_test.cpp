// What srun's environment and the tasks' ticket become. Slurm itself is not there: its configuration comes as a value.
#include "srun_side.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "step_ticket.hpp"
#include "store_server/witness.hpp"

namespace ddp::srun_plugin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr const char* kVariables[] = {"SLURM_MPI_TYPE",
                                      "SLURM_CPUS_PER_TASK",
                                      "SRUN_CPUS_PER_TASK",
                                      "SLURM_DDP",
                                      "_SLURM_SPANK_OPTION_ddp_ddp",
                                      kUserVariable,
                                      kTicketVariable,
                                      "__LIBDDP_SET_SLURM_MPI_TYPE",
                                      "DDP_BACKEND",
                                      "SLURM_KILL_BAD_EXIT",
                                      "SLURM_NO_KILL"};

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> all;
  for (char** line = ::environ; *line != nullptr; ++line) {
    const std::string text = *line;
    all.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  return all;
}

bool listens(std::uint16_t port) {
  try {
    base::connect_tcp("127.0.0.1", port, Deadline::after(std::chrono::seconds(60)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

PluginOptions enabled() {
  PluginOptions options;
  options.enabled = true;
  return options;
}

CommandLine with_ddp() { return {.ddp = true, .cpus_per_task = false, .components = false}; }

class SrunSideTest : public ::testing::Test {
 protected:
  SrunSideTest() {
    std::string name = (fs::temp_directory_path() / "srun-side-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
    for (const char* each : kVariables) ::unsetenv(each);
  }
  ~SrunSideTest() override {
    for (const char* each : kVariables) ::unsetenv(each);
    fs::remove_all(folder_);
  }

  /// A Slurm that has plugins for these types of MPI.
  SlurmFacts slurm_with(const std::vector<std::string>& types, const std::string& mpi_default = "none") {
    const fs::path plugins = folder_ / "plugins";
    fs::create_directories(plugins);
    for (const std::string& type : types) std::ofstream(plugins / ("mpi_" + type + ".so")) << "x";
    return {.plugin_dirs = "/nowhere:" + plugins.string(), .mpi_default = mpi_default, .port_range = std::nullopt};
  }

  std::string script(const std::string& lines) {
    const fs::path path = folder_ / "program";
    std::ofstream(path) << "#!/bin/sh\n" << lines << '\n';
    ::chmod(path.c_str(), 0755);
    return path;
  }

  /// The ticket that the tasks get; what is written meanwhile must be @p warning.
  StepTicket ticket_with(const std::string& program, const ::testing::Matcher<std::string>& warning) {
    SrunSide side(program);
    testing::internal::CaptureStderr();
    side.before_options(with_ddp(), SlurmFacts{});
    side.before_launch(enabled(), SlurmFacts{});
    side.at_end();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), warning);
    return parse_ticket(variable(kTicketVariable).value_or(""));
  }

  fs::path folder_;
};

TEST_F(SrunSideTest, OutsideSlurmNothingIsKnown) {
  const SlurmFacts facts = SlurmFacts::read();
  EXPECT_EQ(facts.plugin_dirs, "");
  EXPECT_EQ(facts.mpi_default, "");
  EXPECT_FALSE(facts.port_range);
  EXPECT_EQ(choose_mpi(facts, false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(facts, true), MpiChoice::leave);
}

TEST_F(SrunSideTest, PmixComesFirst) {
  EXPECT_EQ(choose_mpi(slurm_with({"none", "pmi2", "pmix"}), false), MpiChoice::pmix);
}

TEST_F(SrunSideTest, SeveralComponentsGetPmi2) {
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}), true), MpiChoice::pmi2);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmix"), true), MpiChoice::pmi2);
}

TEST_F(SrunSideTest, ADefaultOfPmixStays) {
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix", "pmix_v4"}, "pmix_v4"), false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmix"), false), MpiChoice::leave);
  EXPECT_EQ(choose_mpi(slurm_with({"pmi2", "pmix"}, "pmi2"), false), MpiChoice::pmix);
}

TEST_F(SrunSideTest, ThenPmi2) { EXPECT_EQ(choose_mpi(slurm_with({"none", "pmi2"}), false), MpiChoice::pmi2); }

TEST_F(SrunSideTest, WithoutEitherThereIsNothing) {
  EXPECT_EQ(choose_mpi(slurm_with({"none", "cray_shasta"}), false), MpiChoice::nothing_there);
  EXPECT_EQ(choose_mpi(slurm_with({"none"}), true), MpiChoice::nothing_there);
}

TEST_F(SrunSideTest, AnInheritedTicketIsNoTicketOfThisStep) {
  for (const char* by_environment : {"", "0", "1"}) {
    ::setenv(kTicketVariable, "1;4711;of another step", 1);
    ::setenv("SLURM_DDP", by_environment, 1);
    SrunSide("").before_options(CommandLine{}, SlurmFacts{});
    EXPECT_EQ(variable(kTicketVariable), std::nullopt) << by_environment;
  }
}

TEST_F(SrunSideTest, MpiTypeIsSetBeforeOptionsAreRead) {
  SrunSide("").before_options(with_ddp(), slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix");
}

TEST_F(SrunSideTest, ComponentsGetPmi2) {
  SrunSide("").before_options({.ddp = true, .cpus_per_task = false, .components = true}, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmi2");
}

TEST_F(SrunSideTest, WithoutPmi2ComponentsDoNotGetTheSitesPmix) {
  SrunSide side("");
  side.before_options({.ddp = true, .cpus_per_task = false, .components = true}, slurm_with({"pmix"}, "pmix"));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "none");
  side.before_launch(enabled(), SlurmFacts{});
  EXPECT_FALSE(parse_ticket(variable(kTicketVariable).value_or("")).pmi_available);
}

TEST_F(SrunSideTest, OnlyTheModulefilesMpiTypeMakesRoomForThatOfComponents) {
  const CommandLine components{.ddp = true, .cpus_per_task = false, .components = true};
  ::setenv("__LIBDDP_SET_SLURM_MPI_TYPE", "pmix", 1);
  ::setenv("SLURM_MPI_TYPE", "pmix", 1);
  SrunSide("").before_options(components, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmi2");
  ::setenv("SLURM_MPI_TYPE", "pmix_v4", 1);
  SrunSide("").before_options(components, slurm_with({"pmix", "pmi2"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix_v4");
}

TEST_F(SrunSideTest, UsersMpiTypeStays) {
  ::setenv("SLURM_MPI_TYPE", "none", 1);
  SrunSide("").before_options(with_ddp(), slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), "none");
}

TEST_F(SrunSideTest, TheEnvironmentMayAsk) {
  for (const char* name : {"SLURM_DDP", "_SLURM_SPANK_OPTION_ddp_ddp", kUserVariable}) {
    for (const char* each : kVariables) ::unsetenv(each);
    ::setenv(name, "1", 1);
    SrunSide side("");
    side.before_options({}, slurm_with({"pmix"}));
    EXPECT_EQ(variable("SLURM_MPI_TYPE"), "pmix") << name;
    EXPECT_TRUE(variable(kUserVariable)) << "Slurm would not see " << name;
    side.after_options({}, {});
    EXPECT_EQ(variable(kUserVariable).has_value(), name == std::string(kUserVariable)) << "tasks would see it";
  }
}

TEST_F(SrunSideTest, AFailureEndsTheStepUnlessTheUserSaysOtherwise) {
  {
    SrunSide side("");
    side.before_options(with_ddp(), {});
    EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), "1");
    side.after_options(enabled(), {});
    EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt) << "a srun in a task would see it";
  }
  ::setenv("SLURM_KILL_BAD_EXIT", "0", 1);
  SrunSide kept("");
  kept.before_options(with_ddp(), {});
  kept.after_options(enabled(), {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), "0");
  ::unsetenv("SLURM_KILL_BAD_EXIT");
  CommandLine arguments = with_ddp();
  arguments.no_kill = true;
  SrunSide("").before_options(arguments, {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
  arguments = with_ddp();
  arguments.kill_on_bad_exit = false;
  SrunSide("").before_options(arguments, {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
  ::setenv("SLURM_NO_KILL", "", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SLURM_KILL_BAD_EXIT"), std::nullopt);
}

TEST_F(SrunSideTest, WordsForNoSwitchItOff) {
  for (const char* word : {"no", "false", "OFF", "0"}) {
    ::setenv("SLURM_DDP", word, 1);
    SrunSide("").before_options({}, slurm_with({"pmix"}));
    EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt) << word;
  }
  ::setenv("SLURM_DDP", "flase", 1);
  testing::internal::CaptureStderr();
  SrunSide("").before_options({}, slurm_with({"pmix"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("SLURM_DDP: 'flase'"));
}

TEST_F(SrunSideTest, CpusPerTaskAreThoseOfTheJob) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), "6");
}

TEST_F(SrunSideTest, CpusPerTaskOfTheUserStay) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  SrunSide("").before_options({.ddp = true, .cpus_per_task = true, .components = false}, {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), std::nullopt);
  ::setenv("SRUN_CPUS_PER_TASK", "2", 1);
  SrunSide("").before_options(with_ddp(), {});
  EXPECT_EQ(variable("SRUN_CPUS_PER_TASK"), "2");
}

TEST_F(SrunSideTest, TheBackendOfTheCommandLineWinsAlsoWhereItIsAuto) {
  ::setenv("DDP_BACKEND", "gloo", 1);
  SrunSide side("");
  side.before_options(with_ddp(), slurm_with({"pmix"}));
  PluginOptions options = enabled();
  options.backend = "gloo";  // as DDP_BACKEND says
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), "gloo");
  options.backend = "auto";
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), "auto");
  ::unsetenv("DDP_BACKEND");
  side.after_options(options, {});
  EXPECT_EQ(variable("DDP_BACKEND"), std::nullopt);
}

TEST_F(SrunSideTest, WithoutDdpNothingChanges) {
  ::setenv("SLURM_CPUS_PER_TASK", "6", 1);
  const auto before = environment();
  testing::internal::CaptureStderr();
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_options({.ddp = false, .cpus_per_task = false, .components = true}, slurm_with({"pmix"}));
  side.after_options({}, slurm_with({"pmix"}));
  side.before_launch({}, slurm_with({"pmix"}));
  side.at_end();
  EXPECT_EQ(environment(), before);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
}

TEST_F(SrunSideTest, StoreServesWhileTheStepRuns) {
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_options(with_ddp(), slurm_with({"pmix"}));
  PluginOptions options = enabled();
  options.bind = BindPolicy::core;
  options.verbose = true;
  side.after_options(options, {});
  EXPECT_EQ(variable(kTicketVariable), std::nullopt) << "srun may still wait for its allocation";
  side.before_launch(options, {});
  const StepTicket ticket = parse_ticket(variable(kTicketVariable).value_or(""));
  EXPECT_EQ(ticket.options, options);
  EXPECT_TRUE(ticket.pmi_available);
  ASSERT_NE(ticket.port, 0);
  const auto be_witness = [&](const std::string& key) {
    const store_server::Witness witness{"127.0.0.1", ticket.port, store_server::StoreKey::parse(key),
                                        Deadline::after(std::chrono::seconds(60))};
  };
  be_witness(ticket.secret);
  store_server::check_served("127.0.0.1", ticket.port, Deadline::after(std::chrono::seconds(60)));
  std::string wrong = ticket.secret;
  wrong[0] = wrong[0] == '0' ? '1' : '0';
  EXPECT_THROW(be_witness(wrong), Error);
  side.at_end();
  EXPECT_FALSE(listens(ticket.port));
  side.at_end();
}

/// "Max open files" of the only child of this thread: the soft limit and the hard one.
std::vector<std::string> descriptor_limits_of_child() {
  std::string pid;
  std::ifstream("/proc/thread-self/children") >> pid;
  std::ifstream limits("/proc/" + pid + "/limits");
  const std::string name = "Max open files";
  for (std::string line; std::getline(limits, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream values(line.substr(name.size()));
    std::vector<std::string> found(2);
    values >> found[0] >> found[1];
    return found;
  }
  return {};
}

// A step of several components starts its store before srun raises its own limit.
TEST_F(SrunSideTest, StoreHasAllDescriptorsThatItMayHave) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit lowered{.rlim_cur = 128, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_options(with_ddp(), slurm_with({"pmix"}));
  side.before_launch(enabled(), {});
  const std::vector<std::string> limits = descriptor_limits_of_child();
  ::setrlimit(RLIMIT_NOFILE, &before);
  side.at_end();
  ASSERT_EQ(limits.size(), 2U) << "the store does not run";
  EXPECT_EQ(limits[0], limits[1]);
  EXPECT_NE(limits[0], "128");
}

TEST_F(SrunSideTest, SecretsDiffer) {
  const StepTicket first = ticket_with(DDP_STEP_PROGRAM, IsEmpty());
  const StepTicket second = ticket_with(DDP_STEP_PROGRAM, IsEmpty());
  EXPECT_NE(first.secret, second.secret);
}

TEST_F(SrunSideTest, StoreOfSeveralComponentsStartsEarlyAndOnce) {
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_options({.ddp = true, .cpus_per_task = false, .components = true}, {});
  side.after_options(enabled(), {});
  const auto first = variable(kTicketVariable);
  ASSERT_TRUE(first);
  side.before_launch(enabled(), {});
  side.before_launch(enabled(), {});
  EXPECT_EQ(variable(kTicketVariable), first);
  EXPECT_TRUE(listens(parse_ticket(*first).port));
  side.at_end();
}

TEST_F(SrunSideTest, PortIsOneOfSrunPortRange) {
  SlurmFacts facts;
  const StepTicket free = ticket_with(DDP_STEP_PROGRAM, IsEmpty());
  const auto first = static_cast<std::uint16_t>(free.port < 65000 ? free.port : free.port - 100);
  facts.port_range = {first, static_cast<std::uint16_t>(first + 50)};
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_launch(enabled(), facts);
  const StepTicket ticket = parse_ticket(variable(kTicketVariable).value_or(""));
  EXPECT_GE(ticket.port, first);
  EXPECT_LE(ticket.port, first + 50);
  side.at_end();
}

TEST_F(SrunSideTest, NodesWaitLongerForEachOtherWhereTheyMayRunAProlog) {
  const auto patience_with = [this](bool prolog) {
    SlurmFacts facts;
    facts.prolog_at_launch = prolog;
    SrunSide side(DDP_STEP_PROGRAM);
    side.before_launch(enabled(), facts);
    side.at_end();
    return parse_ticket(variable(kTicketVariable).value_or("")).patience_seconds;
  };
  EXPECT_EQ(patience_with(false), 8);
  EXPECT_EQ(patience_with(true), 60);
}

TEST_F(SrunSideTest, ASlurmWithoutPmiIsTold) {
  SrunSide side(DDP_STEP_PROGRAM);
  side.before_options(with_ddp(), slurm_with({"none"}));
  EXPECT_EQ(variable("SLURM_MPI_TYPE"), std::nullopt);
  side.before_launch(enabled(), {});
  EXPECT_FALSE(parse_ticket(variable(kTicketVariable).value_or("")).pmi_available);
  side.at_end();
}

TEST_F(SrunSideTest, WithoutItsProgramTheStepGoesOn) {
  const std::string path = folder_ / "nothing";
  const StepTicket ticket = ticket_with(
      path, MatchesRegex("srun: ddp: warning: [^\n]*ENOENT[^\n]*MASTER_ADDR and MASTER_PORT are not set\n"));
  EXPECT_EQ(ticket.port, 0);
  EXPECT_EQ(ticket.secret, "");
  EXPECT_TRUE(ticket.options.enabled);
}

TEST_F(SrunSideTest, AnotherVersionsProgramIsTold) {
  for (const char* line : {"ddp-step 0 port 6000", "ddp-step 2 port 6000", "ddp-step 1 port 0", "ddp-step 1 port 70000",
                           "ddp-step 1 port 60x", "ddp-step 1 port ", "hello", ""}) {
    const StepTicket ticket = ticket_with(script("read secret; echo '" + std::string(line) + "'"),
                                          MatchesRegex("srun: ddp: warning: [^\n]*it answered '" + std::string(line) +
                                                       "': it is of another version[^\n]*from one package[^\n]*\n"));
    EXPECT_EQ(ticket.port, 0);
  }
}

TEST_F(SrunSideTest, WhatTheProgramCannotDoIsTold) {
  EXPECT_EQ(
      ticket_with(script("read secret; echo 'error no port is free'"),
                  MatchesRegex("srun: ddp: warning: [^\n]*serving the store beside srun: no port is free[^\n]*\n"))
          .port,
      0);
  EXPECT_EQ(ticket_with(script("exit 5"), MatchesRegex("srun: ddp: warning: [^\n]*\n")).port, 0);
}

}  // namespace
}  // namespace ddp::srun_plugin
