// When ddprun warns that Slurm will end the allocation with its first lost node.
#include "launch/no_kill.hpp"

#include <signal.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>

namespace ddp::launcher {
namespace {

const std::string kBatchJob = "JobId=7 JobName=train UserId=me(1) BatchFlag=1 Reboot=0";
constexpr const char* kAdd = "add '#SBATCH --no-kill' to the batch script";

TEST(NoKill, SallocsOptionsAreThoseBeforeItsCommand) {
  for (const char* option : {"--no-kill", "-k", "--no-k", "-Qk"})
    EXPECT_EQ(warning_of_salloc({"salloc", "-N2", option, "/opt/bin/ddprun", "train"}), "") << option;
  for (const char* option : {"-N2", "--no-kill=off", "--kill-command", "-pkey"})
    EXPECT_THAT(warning_of_salloc({"salloc", option, "ddprun", "-k", "--no-kill"}),
                HasSubstr("give --no-kill to salloc"))
        << option;
  EXPECT_EQ(warning_of_salloc({"salloc", "-k", "-N2"}), "") << "a shell";
}

TEST(NoKill, ABatchScriptsLinesSayIt) {
  EXPECT_EQ(warning_of_sbatch({kBatchJob, "#!/bin/bash", "#SBATCH -N2 --no-kill  # nodes fail", "ddprun"}), "");
  EXPECT_EQ(warning_of_sbatch({kBatchJob, "#!/bin/bash", "#SBATCH -k", "ddprun"}), "");
  for (const char* line : {"#SBATCH -N2", "##SBATCH --no-kill", "#SBATCH -N2 # not --no-kill", "echo -k"}) {
    const std::string text = warning_of_sbatch({kBatchJob, "#!/bin/bash", line, "ddprun"});
    EXPECT_THAT(text, HasSubstr(kAdd)) << line;
    EXPECT_THAT(text, HasSubstr("unless sbatch was given --no-kill")) << "it may have been, for all Slurm 22.05 says";
  }
}

TEST(NoKill, TheSubmitLineOfNewSlurmsSaysIt) {
  EXPECT_EQ(warning_of_sbatch({kBatchJob + " SubmitLine=sbatch --no-kill train.sh", "#!/bin/bash", "ddprun"}), "");
  const std::string text = warning_of_sbatch({kBatchJob + " SubmitLine=sbatch train.sh", "#!/bin/bash", "ddprun"});
  EXPECT_THAT(text, AllOf(HasSubstr(kAdd), Not(HasSubstr("unless"))));
}

TEST(NoKill, WhatIsNotKnownIsNoWarning) {
  const std::string wrap = "# This script was created by sbatch --wrap.";
  EXPECT_EQ(warning_of_sbatch({}), "");
  EXPECT_EQ(warning_of_sbatch({"slurm_load_jobs error: Invalid job id specified"}), "");
  EXPECT_EQ(warning_of_sbatch({"JobId=7 BatchFlag=0 Reboot=0"}), "") << "a salloc elsewhere";
  EXPECT_EQ(warning_of_sbatch({kBatchJob, "#!/bin/sh", wrap, "ddprun"}), "");
  EXPECT_THAT(warning_of_sbatch({kBatchJob + " SubmitLine=sbatch --wrap ddprun", "#!/bin/sh", wrap, "ddprun"}),
              HasSubstr("give --no-kill to sbatch"));
}

/// A scontrol that knows of a batch job and its script, or hangs when it is asked for one of both.
class FakeScontrol : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "scontrol_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    environment_ = base::Environment{{{"PATH", name + ":/bin:/usr/bin"}, {"SLURM_JOB_ID", "7"}}};
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void hang_at(const std::string& word) {
    const std::string quoted = "'" + folder_.string() + "/";
    std::ofstream{folder_ / "scontrol"} << "#!/bin/sh\ncase \"$1\" in " << word << ")\n  echo $$ >" << quoted
                                        << "new'\n  mv " << quoted << "new' " << quoted << "pid'\n"
                                        << "  exec sleep 600;;\nesac\necho '" << kBatchJob << "'\n";
    std::filesystem::permissions(folder_ / "scontrol", std::filesystem::perms::owner_all);
  }
  void run_until(NoKillCheck& check, const std::function<bool()>& done) {
    for (const Deadline limit = Deadline::after(60s); !done() && !limit.expired();) {
      loop_.run_once(Deadline::after(10ms));
      check.time_passed();
    }
  }

  stream::EventLoop loop_;
  base::Environment environment_{{}};
  std::filesystem::path folder_;
};

TEST_F(FakeScontrol, EndsWithTheCheck) {
  for (const char* word : {"--oneliner", "write"}) {
    hang_at(word);
    pid_t pid = 0;
    {
      NoKillCheck check{loop_, environment_};
      run_until(check, [this] { return std::filesystem::exists(folder_ / "pid"); });
      std::ifstream{folder_ / "pid"} >> pid;
      ASSERT_GT(pid, 0) << word;
      EXPECT_EQ(::kill(pid, 0), 0);
    }
    EXPECT_EQ(::kill(pid, SIGKILL), -1) << word << ": it has outlived the check";
    EXPECT_EQ(errno, ESRCH);
    std::filesystem::remove(folder_ / "pid");
  }
}

TEST_F(FakeScontrol, IsAskedAboutTheJobAndForItsScript) {
  hang_at("never");
  std::string said;
  testing::internal::CaptureStderr();
  {
    NoKillCheck check{loop_, environment_};
    run_until(check, [&] {
      said += testing::internal::GetCapturedStderr();
      testing::internal::CaptureStderr();
      return !said.empty();
    });
  }
  said += testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(kAdd));
}

}  // namespace
}  // namespace ddp::launcher
