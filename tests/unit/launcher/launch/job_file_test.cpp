// The file by which other allocations find a running job: who may read it, and when it goes.
#include "launch/job_file.hpp"

#include <ddp/error.hpp>

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

struct JobFileTest : testing::Test {
  JobFileTest() {
    std::string folder = (fs::temp_directory_path() / "job file.XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = job_file_path(base::Environment{{{"XDG_STATE_HOME", folder_}, {"SLURM_CLUSTER_NAME", "big"}}}, "7");
  }
  ~JobFileTest() override { fs::remove_all(folder_); }

  std::string refusal() const {
    try {
      return read_job_file(path_) ? "read" : "none";
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string folder_;
  std::string path_;
  const AgentSettings settings_{.point = "10.0.0.1;5;00",
                                .directory = "/work",
                                .arguments = {"--nnodes=1:2", "a b.py"},
                                .environment = {{"SEED", "1"}}};
};

TEST_F(JobFileTest, IsWhereTheUsersStateIs) {
  EXPECT_EQ(path_, folder_ + "/libddp/jobs/big.7");
  EXPECT_EQ(job_file_path(base::Environment{{{"HOME", "/h"}}}, "7"), "/h/.local/state/libddp/jobs/7");
}

TEST_F(JobFileTest, AreFoundByTheNumberOfTheJobOrOfTheProcessAndByName) {
  const base::Environment environment{{{"XDG_STATE_HOME", folder_}}};  // of a shell that Slurm has not started
  EXPECT_THAT(find_job_files(environment, "7"), testing::IsEmpty()) << "there is no folder";
  const std::string by_hand = job_file_path(environment, "n0", 17);
  const std::string of_hosts = job_file_path(environment, "n0", 7);
  EXPECT_EQ(by_hand, folder_ + "/libddp/jobs/n0:17");
  const JobFile first{path_, settings_};
  const JobFile second{by_hand, settings_};
  EXPECT_THAT(find_job_files(environment, "7"), testing::ElementsAre(path_));
  EXPECT_THAT(find_job_files(environment, "17"), testing::ElementsAre(by_hand));
  const JobFile third{of_hosts, settings_};
  EXPECT_THAT(find_job_files(environment, "7"), testing::ElementsAre(path_, of_hosts));
  EXPECT_THAT(find_job_files(environment, "n0:7"), testing::ElementsAre(of_hosts));
}

TEST_F(JobFileTest, ItsUserAloneReadsItWhileTheJobRuns) {
  EXPECT_EQ(refusal(), "none");
  {
    const JobFile file{path_, settings_};
    struct stat made {};
    ASSERT_EQ(::stat(path_.c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 07777U, 0600U);
    ASSERT_EQ(::stat((folder_ + "/libddp/jobs").c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 07777U, 0700U);
    const auto read = read_job_file(path_);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->point, settings_.point);
    EXPECT_EQ(read->arguments, settings_.arguments);
    EXPECT_EQ(read->environment, settings_.environment);
  }
  EXPECT_EQ(refusal(), "none");
  EXPECT_TRUE(fs::is_empty(folder_ + "/libddp/jobs"));
}

TEST_F(JobFileTest, ThatOfALaterDdprunStays) {
  auto first = std::make_unique<JobFile>(path_, settings_);
  const JobFile second{path_, settings_};
  first.reset();
  EXPECT_EQ(refusal(), "read");
}

TEST_F(JobFileTest, OneThatOthersCouldReadOrMakeIsRefusedWithTheRemedy) {
  const JobFile file{path_, settings_};
  ::chmod(path_.c_str(), 0640);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("reading the job file '" + path_), HasSubstr("its mode is 0640"),
                               HasSubstr("they may know the job's secret: end that job")));
  ::chmod(path_.c_str(), 0600);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
    EXPECT_THAT(refusal(), HasSubstr("it belongs to user 65534, but this is user 0"));
  }
  fs::rename(path_, path_ + ".real");
  fs::create_symlink(path_ + ".real", path_);
  EXPECT_THAT(refusal(), HasSubstr("it is a symbolic link"));
}

TEST_F(JobFileTest, OneOfAnotherVersionAndOneThatIsCutOffAreRefused) {
  const JobFile file{path_, settings_};
  const auto write = [this](const std::string& text) { std::ofstream{path_, std::ios::trunc} << text; };
  write("ddprun-agent 0.0.1 3\nabc");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("the frontend is version 0.0.1, but ddprun on"),
                               HasSubstr("install the same version on all hosts")));
  write(encode(settings_, "9").substr(0, 20));
  EXPECT_THAT(refusal(), HasSubstr("reading the job file '"));
  write("nonsense\n");
  EXPECT_THAT(refusal(), HasSubstr("it is not from a ddprun"));
}

}  // namespace
}  // namespace ddp::launcher
