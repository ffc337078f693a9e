// The document: PyTorch's fields where it has them, the rest under "ddp".
#include <sys/resource.h>

#include "collectives/flight/flight_dump.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives {
namespace {

using nlohmann::json;

struct FlightDump : ::testing::Test {
  json dump(const std::string& reason = "a test") {
    return json::parse(to_json(recorder_.snapshot(), FlightJob{.name = "job7.0", .attempt = 1}, reason));
  }

  FlightRecorder recorder_{16};
  std::shared_ptr<FlightGroup> group_ = recorder_.join({.name = "ddp.0.world",
                                                        .backend = "host",
                                                        .rank = 1,
                                                        .global_ranks = {0, 4, 2},
                                                        .timeout = std::chrono::milliseconds(1500)});
  std::array<float, 12> values_{};
};

TEST_F(FlightDump, HasPyTorchsFields) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.reduce_op = ReduceOp::max;
  operation.sequence = 9;
  operation.count = values_.size();
  operation.input = operation.output = std::span(values_);
  const auto slot = group_->record(operation);
  group_->started(slot);
  const json document = dump();
  EXPECT_EQ(document["version"], "2.10");
  EXPECT_EQ(document["pg_config"]["ddp.0.world"]["ranks"], "[0, 4, 2]");
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_enqueued_collective"], 9);
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_started_collective"], 9);
  EXPECT_EQ(document["pg_status"]["ddp.0.world"]["last_completed_collective"], -1);
  ASSERT_EQ(document["entries"].size(), 1U);
  const json& entry = document["entries"][0];
  EXPECT_EQ(entry["record_id"], 1);
  EXPECT_EQ(entry["process_group"], (json::array({"ddp.0.world", "undefined"})));
  EXPECT_EQ(entry["collective_seq_id"], 9);
  EXPECT_EQ(entry["profiling_name"], "gloo:all_reduce");
  EXPECT_EQ(entry["input_sizes"].dump(), "[[12]]");
  EXPECT_EQ(entry["output_sizes"].dump(), "[[12]]");
  EXPECT_EQ(entry["input_dtypes"].dump(), "[\"Float\"]");
  EXPECT_EQ(entry["state"], "started");
  EXPECT_EQ(entry["is_p2p"], false);
  EXPECT_EQ(entry["retired"], false);
  EXPECT_EQ(entry["timeout_ms"], 1500);
  EXPECT_TRUE(entry["time_discovered_completed_ns"].is_null());
  EXPECT_GE(entry["time_discovered_started_ns"], entry["time_created_ns"]);
  EXPECT_EQ(entry["frames"].dump(), "[]");
  EXPECT_EQ(entry["ddp"]["reduction"], "max");
  EXPECT_EQ(entry["ddp"]["count"], 12);
  EXPECT_EQ(entry["ddp"]["input_bytes"], 48);
  EXPECT_EQ(entry["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
  EXPECT_EQ(entry["ddp"]["state"], "started");
}

TEST_F(FlightDump, SaysWhoseItIs) {
  const json document = dump("a \xff reason");
  const json& own = document["ddp"];
  EXPECT_EQ(own["schema"], "ddp-flight/1");
  EXPECT_EQ(own["job"], "job7.0");
  EXPECT_EQ(own["attempt"], 1);
  EXPECT_EQ(own["rank"], 4);
  EXPECT_EQ(own["reason"], "a \xef\xbf\xbd reason");
  EXPECT_EQ(own["groups"][0]["ranks"].dump(), "[0,4,2]");
  EXPECT_EQ(own["groups"][0]["backend"], "host");
  EXPECT_LE(own["begun_ns"], own["written_ns"]);
  EXPECT_TRUE(document["entries"].empty());
}

TEST_F(FlightDump, TransfersCountRanksByTheirPlaceInTheWorld) {
  Operation operation;
  operation.kind = OperationKind::send;
  operation.root = 2;  // rank 2 of the world, the second in its order; the own rank 4 is the third
  operation.tag = 5;
  operation.count = values_.size();
  operation.input = std::span(values_);
  group_->record(operation);
  operation.kind = OperationKind::recv;
  group_->finished(group_->record(operation), true);
  const json entries = dump()["entries"];
  EXPECT_EQ(entries[0]["profiling_name"], "gloo:send 2->1");
  EXPECT_EQ(entries[1]["profiling_name"], "gloo:recv 2<-1");
  EXPECT_EQ(entries[1]["p2p_seq_id"], 2);
  EXPECT_EQ(entries[1]["state"], "completed");
  EXPECT_EQ(entries[1]["retired"], true);
  EXPECT_EQ(entries[0]["is_p2p"], true);
  EXPECT_EQ(entries[0]["ddp"]["tag"], 5);
  EXPECT_EQ(entries[0]["ddp"]["fingerprint"], entries[1]["ddp"]["fingerprint"]);
}

TEST_F(FlightDump, PartsOfDifferentSizeHaveTheirFingerprint) {
  Operation operation;
  operation.kind = OperationKind::all_gather_v;
  operation.sequence = 1;
  operation.counts = {3, 4, 5};
  operation.input = std::span(values_).first(4);
  operation.output = std::span(values_);
  group_->record(operation);
  const json entry = dump()["entries"][0];
  EXPECT_EQ(entry["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
  EXPECT_EQ(entry["input_sizes"], entry["output_sizes"]) << "PyTorch's analyser takes other sizes for a mistake";
  EXPECT_EQ(entry["ddp"]["input_bytes"], 16);
}

TEST_F(FlightDump, ScaledSumsHaveTheirFingerprint) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.sequence = 1;
  operation.prescale = 0.5;
  operation.input = operation.output = std::span(values_);
  group_->record(operation);
  EXPECT_EQ(dump()["entries"][0]["ddp"]["fingerprint"], fmt::format("{:016x}", operation.fingerprint()));
}

TEST_F(FlightDump, FailedOperationsStayStartedForPyTorch) {
  Operation operation;
  operation.sequence = 1;
  group_->finished(group_->record(operation), false);
  const json entry = dump()["entries"][0];
  EXPECT_EQ(entry["state"], "scheduled");
  EXPECT_EQ(entry["ddp"]["state"], "failed");
  EXPECT_EQ(entry["input_dtypes"].dump(), "[]");
}

TEST(FlightJob, IsNamedByTheLauncher) {
  using Variables = std::map<std::string, std::string, std::less<>>;
  const auto name = [](Variables variables) {
    return FlightJob::of(base::Environment{std::move(variables)}).file_name(3);
  };
  EXPECT_EQ(name({}), "ddp.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "17"}, {"SLURM_STEP_ID", "2"}}), "job17.2.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "17"}}), "job17.rank3.json");
  EXPECT_EQ(name({{"TORCHELASTIC_RESTART_COUNT", "2"}}), "ddp.attempt2.rank3.json");
  EXPECT_EQ(name({{"TORCHELASTIC_RESTART_COUNT", "2"}, {"DDP_GENERATION", "5"}}), "ddp.attempt5.rank3.json");
  EXPECT_EQ(name({{"SLURM_JOB_ID", "../x"}, {"TORCHELASTIC_RESTART_COUNT", "-1"}}), "ddp.rank3.json");
}

}  // namespace

// Files appear whole, once for each failure, on request and at a signal.

namespace {

namespace fs = std::filesystem;
using ddp::test::error_of;
using ddp::test::thrown_by;
using nlohmann::json;

struct FlightOutput : ::testing::Test {
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_flight.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    for (const char* name :
         {"SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RESTART_COUNT", "DDP_GENERATION", "DDP_FLIGHT_SIGNAL"}) {
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
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms{0600});
}

TEST_F(FlightOutput, ALinkInItsPlaceIsNotFollowed) {
  std::ofstream(folder_ / "precious") << "mine";
  fs::create_symlink("precious", file());
  ::testing::internal::CaptureStderr();
  record_failure(*join(), failure("it is gone"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("ddp.rank3.json' is a link"));
  EXPECT_EQ(fs::file_size(folder_ / "precious"), 4U);
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
  // In a process of its own, since a file size limit acts like a disk that fills up.
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
  EXPECT_EQ(fs::status(folder_ / "mine.json").permissions(), fs::perms{0600});
  const Error error = thrown_by([&] { dump_flight_recorder(folder_ / "none/mine.json"); });
  EXPECT_THAT(error.what(), HasSubstr("ENOENT"));
}

TEST_F(FlightOutput, AtASignal) {
  ::setenv("DDP_FLIGHT_SIGNAL", "USR2", 1);
  ::unsetenv("DDP_FLIGHT_DIR");
  const Error no_folder = thrown_by([] { join(); });
  EXPECT_THAT(no_folder.what(), HasSubstr("DDP_FLIGHT_DIR is not set"));

  ::setenv("DDP_FLIGHT_DIR", folder_.c_str(), 1);
  ::signal(SIGUSR2, [](int) {});
  const Error taken = thrown_by([] { join(); });
  EXPECT_THAT(taken.what(), HasSubstr("the program handles SIGUSR2 itself"));

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

// Groups record their operations with labels, sequences and times.

namespace {

FlightGroupFacts facts_of(std::string name, std::vector<int> ranks) {
  return {.name = std::move(name),
          .backend = "host",
          .rank = 1,
          .global_ranks = std::move(ranks),
          .timeout = std::chrono::seconds(600)};
}

Operation operation_of(OperationKind kind, std::uint64_t sequence) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = sequence;
  operation.count = 12;
  return operation;
}

std::int64_t wall_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST(FlightRecorder, CountsTransfersApartFromCollectives) {
  FlightRecorder recorder(16);
  const auto group = recorder.join(facts_of("g", {4, 6}));
  group->record(operation_of(OperationKind::all_reduce, 1));
  group->record(operation_of(OperationKind::send, 0));
  group->record(operation_of(OperationKind::recv, 0));
  group->record(operation_of(OperationKind::barrier, 2));
  const FlightSnapshot snapshot = recorder.snapshot();
  EXPECT_EQ(snapshot.rank, 6);
  EXPECT_EQ(snapshot.recorded, 4U);
  ASSERT_EQ(snapshot.records.size(), 4U);
  EXPECT_EQ(snapshot.records[1].fields.sequence, 1U);
  EXPECT_EQ(snapshot.records[2].fields.sequence, 2U);
  EXPECT_EQ(snapshot.records[3].fields.sequence, 2U);
  ASSERT_EQ(snapshot.last_queued.size(), 1U);
  EXPECT_EQ(snapshot.last_queued[0], 2U);
}

TEST(FlightRecorder, TimesAreThoseOfTheWallClock) {
  FlightRecorder recorder(4);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  const std::int64_t before = wall_now();
  const auto slot = group->record(operation_of(OperationKind::barrier, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group->started(slot);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group->finished(slot, true);
  const std::int64_t after = wall_now();
  const FlightSnapshot snapshot = recorder.snapshot();
  ASSERT_EQ(snapshot.records.size(), 1U);
  const auto& record = snapshot.records[0];
  constexpr std::int64_t kStep = 5'000'000;  // of a wall clock that is being corrected
  EXPECT_GE(record.queued_ns, before - kStep);
  EXPECT_LE(record.finished_ns, after + kStep);
  EXPECT_GE(record.started_ns - record.queued_ns, 19'000'000);
  EXPECT_GE(record.finished_ns - record.started_ns, 19'000'000);
  EXPECT_LE(snapshot.begun_ns, record.queued_ns);
  EXPECT_GE(snapshot.taken_ns, record.finished_ns - kStep);
}

TEST(FlightRecorder, LabelsNestAndBelongToTheirThread) {
  FlightRecorder recorder(8);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  const auto record = [&] { group->record(operation_of(OperationKind::barrier, 1)); };
  record();
  {
    const FlightLabel outer("step 17");
    record();
    {
      const FlightLabel inner(std::string(39, 'x') + "é");  // its last character does not fit
      record();
      std::thread(record).join();
    }
    record();
  }
  record();
  const auto records = recorder.snapshot().records;
  ASSERT_EQ(records.size(), 6U);
  EXPECT_EQ(records[0].label(), "");
  EXPECT_EQ(records[1].label(), "step 17");
  EXPECT_EQ(records[2].label(), std::string(39, 'x'));
  EXPECT_EQ(records[3].label(), "");
  EXPECT_EQ(records[4].label(), "step 17");
  EXPECT_EQ(records[5].label(), "");
}

TEST(FlightRecorder, ForgetsGroupsThatAreGoneWithTheirRecords) {
  FlightRecorder recorder(4);
  auto first = recorder.join(facts_of("first", {0, 1}));
  first->record(operation_of(OperationKind::barrier, 1));
  const auto second = recorder.join(facts_of("second", {0, 1}));
  first.reset();
  recorder.join(facts_of("third", {0, 1}));
  EXPECT_EQ(recorder.snapshot().groups.size(), 3U) << "a group whose record is still there";
  for (std::uint64_t i = 1; i <= 8; ++i) second->record(operation_of(OperationKind::barrier, i));
  const auto fourth = recorder.join(facts_of("fourth", {0, 1}));
  const FlightSnapshot snapshot = recorder.snapshot();
  ASSERT_EQ(snapshot.groups.size(), 2U);
  EXPECT_EQ(snapshot.groups[0]->facts().name, "second");
  EXPECT_EQ(snapshot.groups[1]->facts().name, "fourth");
  EXPECT_EQ(snapshot.records.size(), 4U);
}

TEST(FlightRecorder, OfNoSizeIsOff) {
  FlightRecorder recorder(0);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  EXPECT_EQ(group->record(operation_of(OperationKind::barrier, 1)), 0U);
  group->started(0);
  group->finished(0, true);
  EXPECT_TRUE(recorder.snapshot().records.empty());
}

}  // namespace

}  // namespace ddp::collectives
