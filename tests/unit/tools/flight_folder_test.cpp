// Dumps are read from a folder that may have anything in it.
#include "flight/dump_folder.hpp"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "collectives/flight/flight_dump.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools::flight {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

/// What rank 0 of two writes after one all_reduce.
std::string real_dump() {
  collectives::FlightRecorder recorder(8);
  const auto group = recorder.join(
      {.name = "world", .backend = "host", .rank = 0, .global_ranks = {0, 1}, .timeout = std::chrono::seconds(1)});
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.reduce_op = ReduceOp::avg;
  operation.count = 5;
  operation.sequence = 1;
  const FlightLabel label("layer\n3");
  group->started(group->record(operation));
  const Error lost{{.code = ErrorCode::peer_lost, .attempted = "a", .cause = "b", .ranks = {1}}};
  return to_json(recorder.snapshot(), {.name = "job7", .attempt = 0}, "a test", &lost);
}

class FlightFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_flight.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }

  fs::path folder_;
};

TEST(RankDumpFile, HasWhatTheRecorderWrote) {
  const RankDump dump = parse_rank_dump(real_dump(), "x.json");
  EXPECT_EQ(dump.job, "job7");
  EXPECT_EQ(dump.rank, 0);
  EXPECT_EQ(dump.reason, "a test");
  EXPECT_THAT(dump.lost, ElementsAre(1));
  ASSERT_EQ(dump.groups.size(), 1U);
  EXPECT_EQ(dump.groups[0].last_queued, 1U);
  ASSERT_EQ(dump.calls.size(), 1U);
  const Call& call = dump.calls[0];
  EXPECT_EQ(call.description(), "all_reduce #1 of float32 x 5, avg (layer 3)") << "one line, whatever the label";
  EXPECT_EQ(call.state, CallState::started);
  EXPECT_GE(call.started_ns, call.queued_ns);
  EXPECT_EQ(call.finished_ns, 0);
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.reduce_op = ReduceOp::avg;
  operation.count = 5;
  operation.sequence = 1;
  EXPECT_EQ(call.fingerprint, operation.fingerprint());
}

TEST(RankDumpFile, SaysWhatIsWrong) {
  const auto cause = [](std::string text) {
    const auto error = error_of([&] { parse_rank_dump(text, "x.json"); });
    return error ? error->cause() : "nothing";
  };
  const std::string good = real_dump();
  const auto with = [&](const std::string& old, const std::string& text) {
    std::string changed = good;
    const auto place = changed.find(old);
    EXPECT_NE(place, std::string::npos) << old;
    return cause(changed.replace(place, old.size(), text));
  };
  EXPECT_EQ(cause(""), "it is empty");
  EXPECT_THAT(cause(good.substr(0, good.size() / 2)), HasSubstr("cut off"));
  EXPECT_THAT(cause("hello"), HasSubstr("it is no JSON"));
  EXPECT_EQ(cause("[]"), "it is no dump of a flight recorder");
  EXPECT_EQ(cause(R"({"version": "2.10", "pg_config": {}, "entries": []})"), "a dump of PyTorch, not of libddp");
  EXPECT_EQ(with("ddp-flight/1", "ddp-flight/2"),
            "its schema is 'ddp-flight/2', and this program knows 'ddp-flight/1'");
  EXPECT_EQ(with("\"attempt\":0", "\"attempt\":-1"), "'attempt' is out of range");
  EXPECT_EQ(with("\"ranks\":[0,1]", "\"ranks\":[0,0]"), "a rank is in the group 'world' twice");
  EXPECT_EQ(with("\"ranks\":[0,1]", "\"ranks\":[]"), "the group 'world' has no ranks");
  EXPECT_EQ(with("\"operation\":\"all_reduce\"", "\"operation\":\"all_deduce\""),
            "'all_deduce' is not known as 'operation'");
  EXPECT_EQ(with("\"pg_id\":1", "\"pg_id\":2"), "'pg_id' names no group");
  EXPECT_EQ(with("\"count\":5", "\"count\":\"5\""), "'count' is not a whole number");
  EXPECT_EQ(with("\"sequence\":1", "\"sequence\":-1"), "'sequence' is out of range");
  EXPECT_EQ(with("\"tag\":0,", ""), "'tag' is missing");
  EXPECT_NE(with("\"count\":5", "\"count\":1e999"), "nothing");
}

TEST_F(FlightFolder, GoesOnWithTheFilesThatItCanRead) {
  write("job7.rank0.json", real_dump());
  write("job7.rank1.json", real_dump().substr(0, 100));
  write("empty.json", "");
  write("notes.txt", "hello");
  fs::create_directory(folder_ / "sub.json");
  ASSERT_EQ(::mkfifo((folder_ / "fifo.json").c_str(), 0600), 0);
  const DumpFolder folder = read_dump_folder(folder_);
  EXPECT_EQ(folder.job, "job7");
  ASSERT_EQ(folder.dumps.size(), 1U);
  EXPECT_EQ(folder.dumps[0].file, "job7.rank0.json");
  EXPECT_THAT(folder.left_out, ElementsAre("'empty.json': it is empty", HasSubstr("'job7.rank1.json': it is cut off")));
}

TEST_F(FlightFolder, HugeFilesAreNotRead) {
  write("huge.json", "");
  fs::resize_file(folder_ / "huge.json", std::uintmax_t{300} << 20U);
  const auto error = error_of([&] { read_dump_folder(folder_); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::not_found);
  EXPECT_THAT(error->what(), HasSubstr("it has 300 MiB"));
}

TEST_F(FlightFolder, WithoutDumpsIsAnError) {
  const auto empty = error_of([&] { read_dump_folder(folder_); });
  ASSERT_TRUE(empty);
  EXPECT_THAT(empty->what(), HasSubstr("no file there is called *.json"));
  const auto missing = error_of([&] { read_dump_folder(folder_ / "none"); });
  ASSERT_TRUE(missing);
  EXPECT_THAT(missing->what(), HasSubstr("ENOENT"));
}

TEST(ChosenJob, IsTheOneThatWroteLast) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const auto dump = [&](std::string job, int attempt, int rank, std::int64_t begun, std::int64_t written) {
    RankDump made;
    made.file = job + std::to_string(attempt) + std::to_string(rank) + std::to_string(written);
    made.job = std::move(job);
    made.attempt = attempt;
    made.rank = rank;
    made.begun_ns = begun * kSecond;
    made.written_ns = written * kSecond;
    return made;
  };
  const DumpFolder folder =
      choose_job({dump("a", 1, 2, 5000, 6000), dump("a", 1, 0, 5000, 6001), dump("a", 1, 0, 5000, 5900),
                  dump("a", 0, 1, 1000, 2000), dump("b", 1, 1, 5000, 6000), dump("a", 1, 3, 100, 4000)});
  EXPECT_EQ(folder.job, "a, attempt 1");
  ASSERT_EQ(folder.dumps.size(), 2U);
  EXPECT_EQ(folder.dumps[0].rank, 0);
  EXPECT_EQ(folder.dumps[0].written_ns, 6001 * kSecond);
  EXPECT_EQ(folder.dumps[1].rank, 2);
  EXPECT_THAT(folder.left_out,
              testing::UnorderedElementsAre(HasSubstr("of a, not"), HasSubstr("of b, attempt 1"),
                                            HasSubstr("later dump of rank 0"), HasSubstr("an earlier job")));
}

}  // namespace
}  // namespace ddp::tools::flight
