// The machine-readable report is complete and always valid JSON, and its file is never half written.
#include "report/json_report.hpp"

#include <system_error>

#include <ddp/error.hpp>

#include "base/unique_fd.hpp"
#include "support/sanitized.hpp"

namespace ddp::launcher {
namespace {

using nlohmann::json;

const ReportContext kContext{
    .program = "train.py", .attempt = 1, .restarts_used = 1, .max_restarts = 2, .num_nodes = 2, .world_size = 8};
const std::chrono::system_clock::time_point kTime{milliseconds(1'700'000'000'042)};
const JobTimes kTimes{.start = kTime, .until_started = milliseconds(1500), .total = milliseconds(60'250)};

json report(const JobOutcome& outcome) { return json::parse(format_json_report(outcome, kContext, kTimes)); }

RankName name(int rank) { return {.rank = rank, .local_rank = rank % 4, .pid = 100 + rank, .host = "n1"}; }

RankFailure failure(int rank, int code, bool by_signal = false) {
  return {.name = name(rank),
          .end = RankEnd{.code = code, .by_signal = by_signal, .core_dumped = by_signal, .time = kTime},
          .time = kTime};
}

TEST(JsonReport, Success) {
  const json document = report({});
  EXPECT_EQ(document["schema"], "ddprun-report/1");
  EXPECT_EQ(document["program"], "train.py");
  EXPECT_EQ(document["success"], true);
  EXPECT_EQ(document["exit_status"], 0);
  EXPECT_TRUE(document["root_cause"].is_null());
  EXPECT_EQ(document["attempt"], 1);
  EXPECT_EQ(document["max_restarts"], 2);
  EXPECT_EQ(document["num_nodes"], 2);
  EXPECT_EQ(document["world_size"], 8);
  EXPECT_EQ(document["start"], "2023-11-14T22:13:20.042Z");
  EXPECT_EQ(document["seconds_until_started"], 1.5);
  EXPECT_EQ(document["seconds_total"], 60.25);
  EXPECT_TRUE(document["signal"].is_null());
  EXPECT_EQ(document["failures"], json::array());
}

TEST(JsonReport, AFailureWithAllItsTraces) {
  JobOutcome outcome;
  outcome.failures = {failure(5, 85), failure(6, SIGSEGV, true)};
  outcome.failures[0].traces = {
      .error_file = "/tmp/e.json",
      .error_content =
          R"({"message": {"message": "m", "extraInfo": {"py_callstack": "t\n", "timestamp": "1700000000"}}})",
      .stderr_tail = "last\n",
      .oom = "oom sentence",
      .pmix_server = "pmix sentence",
      .stdout_log = "/logs/1/stdout.log"};
  outcome.failures[0].hung = milliseconds(60'500);
  const json document = report(outcome);
  EXPECT_EQ(document["success"], false);
  EXPECT_EQ(document["exit_status"], 85);
  EXPECT_EQ(document["root_cause"], json({{"kind", "rank"}, {"rank", 5}, {"host", "n1"}}));
  EXPECT_EQ(
      document["failures"][0],
      json({{"rank", 5},
            {"local_rank", 1},
            {"host", "n1"},
            {"pid", 105},
            {"time", "2023-11-14T22:13:20.042Z"},
            {"exit_code", 85},
            {"signal", nullptr},
            {"core_dumped", false},
            {"abort", nullptr},
            {"error",
             {{"file", "/tmp/e.json"}, {"message", "m"}, {"traceback", "t\n"}, {"time", "2023-11-14T22:13:20.000Z"}}},
            {"stderr_tail", "last\n"},
            {"oom", "oom sentence"},
            {"pmix_server", "pmix sentence"},
            {"seconds_hung", 60.5},
            {"interpreter", nullptr},
            {"logs", {{"stdout", "/logs/1/stdout.log"}, {"stderr", nullptr}}}}));
  const json& second = document["failures"][1];
  EXPECT_TRUE(second["exit_code"].is_null());
  EXPECT_EQ(second["signal"], json({{"number", 11}, {"name", "SIGSEGV"}}));
  EXPECT_EQ(second["core_dumped"], true);
  EXPECT_TRUE(second["error"]["file"].is_null());
  EXPECT_TRUE(second["error"]["message"].is_null());
  EXPECT_TRUE(second["stderr_tail"].is_null());
}

TEST(JsonReport, AbortsStopsNodesAndCounts) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 0)};
  outcome.failures[0].end.reset();
  outcome.failures[0].abort = AbortCall{.status = 7, .message = "no data"};
  outcome.stopped = {{.name = name(2), .signal = SIGSTOP, .before_failure = milliseconds(8100), .time = kTime}};
  outcome.ended_on_request = 3;
  outcome.killed = 2;
  outcome.lost = 1;
  outcome.unkillable = {name(3)};
  outcome.unkillable[0].pid = 0;
  outcome.silent = {"n3"};
  outcome.store_refusals = {"n0: the job's store refused one"};
  outcome.stacks.groups = {{.ranks = {0, 2}, .tool = "gdb", .text = "#0 f"}};
  outcome.stacks.notes = {{.hosts = {"n0"}, .text = "no py-spy"}};
  EXPECT_TRUE(report(outcome).at("hang").is_null());
  EXPECT_TRUE(report(outcome).at("verdict").is_null());
  outcome.verdict = GroupVerdict{.ranks = {2}, .reporters = {0, 1}, .has_failed = false};
  EXPECT_EQ(report(outcome)["verdict"], json::parse(R"({"ranks": [2], "reported_by": [0, 1]})"));
  outcome.hang = {.when = "no progress for 60 s", .text = "rank 1 is stopped\n", .json = R"({"culprits": [1]})"};
  json document = report(outcome);
  EXPECT_EQ(document["silent_nodes"], json({"n3"}));
  EXPECT_EQ(document["store_refusals"], json({"n0: the job's store refused one"}));
  EXPECT_EQ(document["stacks"], json::parse(R"([{"ranks": [0, 2], "tool": "gdb", "text": "#0 f"}])"));
  EXPECT_EQ(document["stack_notes"], json::parse(R"([{"hosts": ["n0"], "text": "no py-spy"}])"));
  EXPECT_EQ(document["hang"], json({{"when", "no progress for 60 s"}, {"culprits", {1}}}));
  EXPECT_EQ(document["root_cause"]["kind"], "stopped_rank");
  EXPECT_EQ(document["exit_status"], 7);
  EXPECT_EQ(document["failures"][0]["abort"], json({{"status", 7}, {"message", "no data"}}));
  EXPECT_TRUE(document["failures"][0]["exit_code"].is_null());
  EXPECT_EQ(document["stopped"][0]["seconds_before_failure"], 8.1);
  EXPECT_EQ(document["stopped"][0]["signal"]["name"], "SIGSTOP");
  EXPECT_EQ(document["ended_on_request"], 3);
  EXPECT_EQ(document["killed"], 2);
  EXPECT_EQ(document["lost"], 1);
  EXPECT_EQ(document["unkillable"][0], json({{"rank", 3}, {"local_rank", 3}, {"host", "n1"}, {"pid", nullptr}}));
  outcome.nodes = {{.host = "n2", .node_rank = 1, .num_ranks = 4, .message = "lost", .exit_status = 9, .time = kTime}};
  document = report(outcome);
  EXPECT_EQ(document["root_cause"], json({{"kind", "node"}, {"node_rank", 1}, {"host", "n2"}}));
  EXPECT_EQ(document["exit_status"], 9);
  EXPECT_EQ(document["nodes"][0], json({{"node_rank", 1},
                                        {"host", "n2"},
                                        {"num_ranks", 4},
                                        {"time", "2023-11-14T22:13:20.042Z"},
                                        {"message", "lost"},
                                        {"exit_status", 9}}));
}

TEST(JsonReport, RanksThatEndedEarlyAreListed) {
  EXPECT_EQ(report({})["ended_early"], json::array());
  JobOutcome outcome;
  outcome.failures = {failure(0, 1)};
  outcome.early = {{.name = name(1), .before_failure = milliseconds(3200), .time = kTime}};
  const json document = report(outcome);
  EXPECT_EQ(document["ended_early"], json::array({{{"rank", 1},
                                                   {"local_rank", 1},
                                                   {"host", "n1"},
                                                   {"pid", 101},
                                                   {"time", "2023-11-14T22:13:20.042Z"},
                                                   {"seconds_before_failure", 3.2}}}));
  EXPECT_EQ(document["root_cause"], json({{"kind", "rank"}, {"rank", 0}, {"host", "n1"}}));
}

TEST(JsonReport, WhatTheUserEnded) {
  JobOutcome outcome;
  outcome.forwarded_signal = SIGTERM;
  EXPECT_EQ(report(outcome)["root_cause"], json({{"kind", "signal"}}));
  EXPECT_EQ(report(outcome)["signal"], json({{"number", 15}, {"name", "SIGTERM"}}));
  outcome = {};
  outcome.timed_out = true;
  EXPECT_EQ(report(outcome)["root_cause"], json({{"kind", "timeout"}}));
  EXPECT_EQ(report(outcome)["timed_out"], true);
  EXPECT_EQ(report(outcome)["exit_status"], 124);
  outcome = {};
  outcome.unkillable = {name(3)};
  EXPECT_EQ(report(outcome)["root_cause"]["kind"], "unkillable");
}

TEST(JsonReport, TextThatIsNoUtf8IsMadeSo) {
  JobOutcome outcome;
  outcome.failures = {failure(1, 1)};
  outcome.failures[0].traces = {.error_file = "\xff", .error_content = "\xfe", .stderr_tail = "\xc3"};
  outcome.failures[0].name.host = "\x80";
  outcome.failures[0].abort = AbortCall{.status = 7, .message = "\xf0\x9f"};
  EXPECT_EQ(report(outcome)["failures"][0]["stderr_tail"], "\xef\xbf\xbd");
}

TEST(JsonReport, ListsAllOfManyFailures) {
  JobOutcome outcome;
  constexpr int kRanks = ::ddp::test::cases(4096);
  for (int rank = 0; rank < kRanks; ++rank) outcome.failures.push_back(failure(rank, 1));
  EXPECT_EQ(report(outcome)["failures"].size(), static_cast<std::size_t>(kRanks));
}

struct ReportFileTest : testing::Test {
  ReportFileTest() {
    std::string name = testing::TempDir() + "report_file_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
  }
  ~ReportFileTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name = "report.json") const { return folder_ / name; }
  static std::string text(const std::string& file) {
    std::ifstream stream(file);
    std::ostringstream all;
    all << stream.rdbuf();
    return all.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  template <class Action>
  static std::string native_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::system);
      EXPECT_THAT(error.attempted(), HasSubstr("--report-json="));
      return error.native();
    }
    return "no error";
  }

  std::filesystem::path folder_;
};

TEST_F(ReportFileTest, CheckingLeavesNothingAndChangesNothing) {
  check_report_file(path());
  EXPECT_EQ(files(), 0U);
  std::ofstream(path()) << "old";
  check_report_file(path());
  EXPECT_EQ(text(path()), "old");
  EXPECT_EQ(files(), 1U);
}

TEST_F(ReportFileTest, ReplacesTheFileAsAWholeAndKeepsItsMode) {
  std::ofstream(path()) << "the old report";
  ASSERT_EQ(::chmod(path().c_str(), 0604), 0);
  std::filesystem::create_hard_link(path(), path("old"));
  write_report_file(path(), "new");
  EXPECT_EQ(text(path()), "new");
  EXPECT_EQ(text(path("old")), "the old report");
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0604U);
  EXPECT_EQ(files(), 2U);
}

TEST_F(ReportFileTest, ANewFileHasTheModeOfTheUmask) {
  const mode_t before = ::umask(027);
  write_report_file(path(), "new");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

TEST_F(ReportFileTest, LinksAreFollowed) {
  std::ofstream(path("target")) << "old";
  std::filesystem::create_symlink("target", path());
  write_report_file(path(), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(text(path("target")), "new");
}

TEST_F(ReportFileTest, TheLongestNameIsNoProblem) {
  const std::string file = path(std::string(255, 'x'));
  check_report_file(file);
  write_report_file(file, "new");
  EXPECT_EQ(text(file), "new");
}

TEST_F(ReportFileTest, AFullPipeIsGivenUpAndTheErrorSaysWhy) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  const base::UniqueFd reader{::open(path().c_str(), O_RDONLY | O_NONBLOCK)};
  ASSERT_TRUE(reader);
  EXPECT_THAT(
      native_of([&] { write_report_file(path(), std::string(10'000'000, 'x'), std::chrono::milliseconds(50)); }),
      HasSubstr("ETIMEDOUT"));
}

TEST_F(ReportFileTest, AFolderThatIsNotThere) {
  const std::string file = path("missing") + "/report.json";
  EXPECT_THAT(native_of([&] { check_report_file(file); }), HasSubstr("ENOENT"));
  EXPECT_THAT(native_of([&] { write_report_file(file, "x"); }), HasSubstr("ENOENT"));
  EXPECT_EQ(files(), 0U);
}

TEST_F(ReportFileTest, AFolderOrBelowAFile) {
  EXPECT_THAT(native_of([&] { check_report_file(folder_); }), HasSubstr("EISDIR"));
  std::ofstream(path()) << "x";
  EXPECT_THAT(native_of([&] { check_report_file(path() + "/below"); }), HasSubstr("ENOTDIR"));
  EXPECT_THAT(native_of([&] { check_report_file(""); }), HasSubstr("ENOENT"));
  EXPECT_THAT(native_of([&] { check_report_file(path(std::string(300, 'x'))); }), HasSubstr("ENAMETOOLONG"));
}

TEST_F(ReportFileTest, AFolderThatMayNotBeWrittenTo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::permissions(folder_, std::filesystem::perms{0500});
  EXPECT_THAT(native_of([&] { check_report_file(path()); }), HasSubstr("EACCES"));
  std::filesystem::permissions(folder_, std::filesystem::perms{0700});
}

TEST_F(ReportFileTest, AFullDevice) {
  check_report_file("/dev/full");  // only writing reveals it
  EXPECT_THAT(native_of([&] { write_report_file("/dev/full", "x"); }), HasSubstr("ENOSPC"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  write_report_file("/dev/null", "x");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(ReportFileTest, APipeIsWrittenToAndNotReplaced) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  check_report_file(path());
  EXPECT_THAT(native_of([&] { write_report_file(path(), "x"); }), HasSubstr("ENXIO"));  // without a reader; no waiting
  const base::UniqueFd reader{::open(path().c_str(), O_RDONLY | O_NONBLOCK)};
  ASSERT_TRUE(reader);
  check_report_file(path());
  write_report_file(path(), "report");
  char buffer[16];
  EXPECT_EQ(::read(reader.get(), buffer, sizeof(buffer)), 6);
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
}

TEST_F(ReportFileTest, AStandardStreamThatIsAFileKeepsWhatItHas) {
  std::ofstream(path()) << "output of the job\n";
  const base::UniqueFd file{::open(path().c_str(), O_WRONLY | O_APPEND)};
  ASSERT_TRUE(file);
  write_report_file("/dev/fd/" + std::to_string(file.get()), "report");
  EXPECT_EQ(text(path()), "output of the job\nreport");
}

}  // namespace
}  // namespace ddp::launcher
