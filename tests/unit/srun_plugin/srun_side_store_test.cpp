// The step's store beside srun, and the ticket by which tasks find it.
#include "srun_side_fixture.hpp"

#include <sys/resource.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "support/checkout.hpp"

namespace ddp::srun_plugin::test {
namespace {

bool is_listening(std::uint16_t port) {
  try {
    base::connect_tcp("127.0.0.1", port, Deadline::after(std::chrono::seconds(60)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

class SrunSideStoreTest : public SrunSideTest {
 protected:
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
};

TEST_F(SrunSideStoreTest, StoreServesWhileTheStepRuns) {
  SrunSide side(ddp::test::built_program("ddp-step"));
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
  const auto be_agent = [&](const std::string& secret) {
    launcher::control::connect({"127.0.0.1"}, ticket.port, launcher::control::Secret::from_hex(secret),
                               Deadline::after(std::chrono::seconds(60)));
  };
  be_agent(ticket.secret);
  std::string wrong = ticket.secret;
  wrong[0] = wrong[0] == '0' ? '1' : '0';
  EXPECT_THROW(be_agent(wrong), Error);
  side.at_end();
  EXPECT_FALSE(is_listening(ticket.port));
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
TEST_F(SrunSideStoreTest, StoreHasAllDescriptorsThatItMayHave) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit lowered{.rlim_cur = 128, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  SrunSide side(ddp::test::built_program("ddp-step"));
  side.before_options(with_ddp(), slurm_with({"pmix"}));
  side.before_launch(enabled(), {});
  const std::vector<std::string> limits = descriptor_limits_of_child();
  ::setrlimit(RLIMIT_NOFILE, &before);
  side.at_end();
  ASSERT_EQ(limits.size(), 2U) << "the store does not run";
  EXPECT_EQ(limits[0], limits[1]);
  EXPECT_NE(limits[0], "128");
}

TEST_F(SrunSideStoreTest, SecretsDiffer) {
  const StepTicket first = ticket_with(ddp::test::built_program("ddp-step"), IsEmpty());
  const StepTicket second = ticket_with(ddp::test::built_program("ddp-step"), IsEmpty());
  EXPECT_NE(first.secret, second.secret);
}

TEST_F(SrunSideStoreTest, StoreOfSeveralComponentsStartsEarlyAndOnce) {
  SrunSide side(ddp::test::built_program("ddp-step"));
  side.before_options({.ddp = true, .cpus_per_task = false, .components = true}, {});
  side.after_options(enabled(), {});
  const auto first = variable(kTicketVariable);
  ASSERT_TRUE(first);
  side.before_launch(enabled(), {});
  side.before_launch(enabled(), {});
  EXPECT_EQ(variable(kTicketVariable), first);
  EXPECT_TRUE(is_listening(parse_ticket(*first).port));
  side.at_end();
}

TEST_F(SrunSideStoreTest, PortIsOneOfSrunPortRange) {
  SlurmFacts facts;
  const StepTicket free = ticket_with(ddp::test::built_program("ddp-step"), IsEmpty());
  const auto first = static_cast<std::uint16_t>(free.port < 65000 ? free.port : free.port - 100);
  facts.port_range = {first, static_cast<std::uint16_t>(first + 50)};
  SrunSide side(ddp::test::built_program("ddp-step"));
  side.before_launch(enabled(), facts);
  const StepTicket ticket = parse_ticket(variable(kTicketVariable).value_or(""));
  EXPECT_GE(ticket.port, first);
  EXPECT_LE(ticket.port, first + 50);
  side.at_end();
}

TEST_F(SrunSideStoreTest, NodesWaitLongerForEachOtherWhereTheyMayRunAProlog) {
  const auto patience_with = [](bool prolog) {
    SlurmFacts facts;
    facts.prolog_at_launch = prolog;
    SrunSide side(ddp::test::built_program("ddp-step"));
    side.before_launch(enabled(), facts);
    side.at_end();
    return parse_ticket(variable(kTicketVariable).value_or("")).patience_seconds;
  };
  EXPECT_EQ(patience_with(false), 8);
  EXPECT_EQ(patience_with(true), 60);
}

TEST_F(SrunSideStoreTest, WithoutItsProgramTheStepGoesOn) {
  const std::string path = folder_ / "nothing";
  const StepTicket ticket = ticket_with(
      path, MatchesRegex("srun: ddp: warning: [^\n]*ENOENT[^\n]*MASTER_ADDR and MASTER_PORT are not set\n"));
  EXPECT_EQ(ticket.port, 0);
  EXPECT_EQ(ticket.secret, "");
  EXPECT_TRUE(ticket.options.enabled);
}

TEST_F(SrunSideStoreTest, AnotherVersionsProgramIsTold) {
  for (const char* line : {"ddp-step 0 port 6000", "ddp-step 2 port 6000", "ddp-step 1 port 0", "ddp-step 1 port 70000",
                           "ddp-step 1 port 60x", "ddp-step 1 port ", "hello", ""}) {
    const StepTicket ticket = ticket_with(script("read secret; echo '" + std::string(line) + "'"),
                                          MatchesRegex("srun: ddp: warning: [^\n]*it answered '" + std::string(line) +
                                                       "': its version differs[^\n]*from one package[^\n]*\n"));
    EXPECT_EQ(ticket.port, 0);
  }
}

TEST_F(SrunSideStoreTest, WhatTheProgramCannotDoIsTold) {
  EXPECT_EQ(
      ticket_with(script("read secret; echo 'error no port is free'"),
                  MatchesRegex("srun: ddp: warning: [^\n]*coordinating the step beside srun: no port is free[^\n]*\n"))
          .port,
      0);
  EXPECT_EQ(ticket_with(script("exit 5"), MatchesRegex("srun: ddp: warning: [^\n]*\n")).port, 0);
}

}  // namespace
}  // namespace ddp::srun_plugin::test
