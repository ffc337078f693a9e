// Files appear whole, once for each failure, on request and at a signal.
#include "collectives/flight/flight_output.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives {
namespace {

namespace fs = std::filesystem;
using ddp::test::error_of;
using nlohmann::json;
using ::testing::HasSubstr;

class FlightOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_flight.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT", "DDP_FLIGHT_SIGNAL"}) {
      ::unsetenv(name);
    }
    ::setenv("DDP_FLIGHT_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("DDP_FLIGHT_DIR");
    ::unsetenv("DDP_FLIGHT_SIGNAL");
    fs::remove_all(folder_);
  }

  static std::shared_ptr<FlightGroup> join() {
    return join_flight_recorder({.name = "g",
                                 .backend = "host",
                                 .rank = 0,
                                 .global_ranks = {3, 4},
                                 .timeout = std::chrono::milliseconds(1000)});
  }
  static Error failure(const std::string& cause) {
    return Error{{.code = ErrorCode::peer_lost, .attempted = "all_reduce #1", .cause = cause, .ranks = {4}}};
  }
  std::string file() const { return folder_ / "ddp.rank3.json"; }
  json content() const { return json::parse(std::ifstream(file())); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(FlightOutput, TheFirstFailureOfAGroupIsRecorded) {
  const auto group = join();
  record_failure(*group, failure("it is gone"));
  EXPECT_EQ(content()["ddp"]["reason"], "all_reduce #1: it is gone (rank 4)");
  EXPECT_EQ(content()["ddp"]["failure"].dump(), R"({"code":"peer_lost","ranks":[4]})");
  record_failure(*group, failure("something later"));
  EXPECT_EQ(content()["ddp"]["reason"], "all_reduce #1: it is gone (rank 4)");
  EXPECT_EQ(files(), 1U);
}

TEST_F(FlightOutput, WithoutFolderNothingIsWritten) {
  ::unsetenv("DDP_FLIGHT_DIR");
  record_failure(*join(), failure("it is gone"));
  EXPECT_EQ(files(), 0U);
}

TEST_F(FlightOutput, AFolderThatDoesNotExistIsLogged) {
  ::setenv("DDP_FLIGHT_DIR", (folder_ / "none").c_str(), 1);
  ::testing::internal::CaptureStderr();
  record_failure(*join(), failure("it is gone"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the folder must exist"));
}

TEST_F(FlightOutput, OnAFullDiskTheOldFileStays) {
  std::ofstream(file()) << "old";
  const auto group = join();
  Operation operation;
  for (operation.sequence = 1; operation.sequence < 50; ++operation.sequence) group->record(operation);
  // In a process of its own, since a limit of a file's size acts like a disk that fills up.
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto error = error_of([&] { dump_flight_recorder(file()); });
    ::_exit(error && error->code() == ErrorCode::system ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::ostringstream text;
  text << std::ifstream(file()).rdbuf();
  EXPECT_EQ(text.str(), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(FlightOutput, OnRequest) {
  const auto group = join();
  EXPECT_EQ(json::parse(flight_recorder_json())["ddp"]["rank"], 3);
  dump_flight_recorder(folder_ / "mine.json");
  EXPECT_EQ(json::parse(std::ifstream(folder_ / "mine.json"))["ddp"]["schema"], "ddp-flight/1");
  const auto error = error_of([&] { dump_flight_recorder(folder_ / "none/mine.json"); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("ENOENT"));
}

TEST_F(FlightOutput, AtASignal) {
  ::setenv("DDP_FLIGHT_SIGNAL", "USR2", 1);
  ::unsetenv("DDP_FLIGHT_DIR");
  const auto no_folder = error_of([] { join(); });
  ASSERT_TRUE(no_folder);
  EXPECT_THAT(no_folder->what(), HasSubstr("DDP_FLIGHT_DIR is not set"));

  ::setenv("DDP_FLIGHT_DIR", folder_.c_str(), 1);
  ::signal(SIGUSR2, [](int) {});
  const auto taken = error_of([] { join(); });
  ASSERT_TRUE(taken);
  EXPECT_THAT(taken->what(), HasSubstr("the program handles SIGUSR2 itself"));

  ::signal(SIGUSR2, SIG_DFL);
  const auto group = join();
  const auto again = join();
  ASSERT_EQ(::raise(SIGUSR2), 0);
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (!fs::exists(file()) && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(content()["ddp"]["reason"], "SIGUSR2");
}

TEST_F(FlightOutput, WrongSizesAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // read once in a process: in a new one
  ::setenv("DDP_FLIGHT_SIZE", "many", 1);
  EXPECT_EXIT(
      {
        const auto error = error_of([] { FlightRecorder::process(); });
        ::_exit(error && std::string(error->what()).find("'many' is not a number") != std::string::npos ? 7 : 1);
      },
      testing::ExitedWithCode(7), "");
  ::unsetenv("DDP_FLIGHT_SIZE");
}

}  // namespace
}  // namespace ddp::collectives
