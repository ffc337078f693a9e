// What an agent over ssh is told arrives whole or not at all, and which variables are told.
#include "launch/agent_settings.hpp"

#include <ddp/error.hpp>

#include "base/unique_fd.hpp"
#include "support/message_check.hpp"

namespace ddp::launcher {
namespace {

AgentSettings some() {
  return {.point = "10.0.0.1;7;ab",
          .node = 3,
          .ranks = 2,
          .here = false,
          .file_mask = 027,
          .directory = "/home/u",
          .arguments = {"-H", "n0:2", "", "a\nb"},
          .environment = {{"A", "1=2\n3"}, {"EMPTY", ""}, {"LONG", std::string(300'000, 'x')}}};
}

/// Reads what a thread writes.
AgentSettings read(const std::string& bytes, std::chrono::milliseconds patience = 20s) {
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  base::UniqueFd in{ends[0]};
  base::UniqueFd out{ends[1]};
  std::jthread writer([&] {
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const ssize_t size = ::write(out.get(), rest.data(), std::min<std::size_t>(rest.size(), 1'000));
      if (size <= 0) break;
      rest.remove_prefix(static_cast<std::size_t>(size));
    }
    if (patience > 1s) out.reset();
  });
  try {
    return read_agent_settings(in.get(), "1.0", Deadline::after(patience));
  } catch (...) {
    in.reset();  // for the writer
    throw;
  }
}

std::string settings_complaint(const std::string& bytes, std::chrono::milliseconds patience = 20s) {
  try {
    read(bytes, patience);
  } catch (const Error& error) {
    return error.what();
  }
  return "no complaint";
}

TEST(AgentSettingsTest, ArriveAsTheyWere) {
  const AgentSettings sent = some();
  const AgentSettings got = read(encode(sent, "1.0"));
  EXPECT_EQ(got.point, sent.point);
  EXPECT_EQ(got.node, 3);
  EXPECT_EQ(got.ranks, 2);
  EXPECT_FALSE(got.here);
  EXPECT_EQ(got.file_mask, static_cast<mode_t>(027));
  EXPECT_EQ(got.directory, "/home/u");
  EXPECT_EQ(got.arguments, sent.arguments);
  EXPECT_EQ(got.environment, sent.environment);
}

TEST(AgentSettingsTest, AnotherVersionIsNamedWithBoth) {
  EXPECT_THAT(settings_complaint(encode(some(), "2.0")), AllOf(HasSubstr("version 2.0"), HasSubstr("version 1.0")));
}

TEST(AgentSettingsTest, WhatIsCutOffOrNoneIsRefused) {
  const std::string whole = encode(some(), "1.0");
  EXPECT_THAT(settings_complaint(whole.substr(0, whole.size() - 1)), HasSubstr("ended early"));
  EXPECT_THAT(settings_complaint(whole + "x"), HasSubstr("longer"));
  EXPECT_THAT(settings_complaint("hello\n"), HasSubstr("not from a ddprun"));
  EXPECT_THAT(settings_complaint(std::string(1'000, 'x')), HasSubstr("not from a ddprun"));
  EXPECT_THAT(settings_complaint("ddprun-agent 1.0 x\n"), HasSubstr("length"));
  EXPECT_THAT(settings_complaint(""), HasSubstr("ended early"));
  EXPECT_THAT(settings_complaint("ddprun-agent 1.0 5\nab", 100ms), HasSubstr("did not arrive"));
  EXPECT_THAT(settings_complaint("ddprun-agent 1.0 2\nab"), HasSubstr("the message ends after"));
  tests::check_message<AgentSettings>();
}

TEST(PortableEnvironmentTest, LeavesOutWhatBelongsToAHostALauncherOrSlurm) {
  const base::Environment environment{{{"PATH", "/opt/bin:/bin"},
                                       {"LD_LIBRARY_PATH", "/opt/lib"},
                                       {"NCCL_DEBUG", "INFO"},
                                       {"LC_ALL", "C.UTF-8"},
                                       {"HOME", "/home/u"},
                                       {"DISPLAY", ":0"},
                                       {"SSH_AUTH_SOCK", "/tmp/x"},
                                       {"XDG_RUNTIME_DIR", "/run/user/7"},
                                       {"SLURM_JOB_ID", "7"},
                                       {"RANK", "0"},
                                       {"PMIX_RANK", "0"},
                                       {"DDP_RDZV_SECRET", "x"}}};
  EXPECT_THAT(portable_environment(environment),
              ElementsAre(Pair("LC_ALL", "C.UTF-8"), Pair("LD_LIBRARY_PATH", "/opt/lib"), Pair("NCCL_DEBUG", "INFO"),
                          Pair("PATH", "/opt/bin:/bin")));
}

}  // namespace
}  // namespace ddp::launcher
