// The command line of `ddp-info flight`.
#include "cli/exit_error.hpp"
#include "collectives/flight/flight_dump.hpp"
#include "flight/analysis.hpp"
#include "flight/flight_command.hpp"
#include "flight/rank_dump.hpp"
#include "unit/tools/flight_job.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools::flight {
namespace {

FlightOptions parse(const std::vector<std::string>& words) { return parse_flight_options(words); }

std::string problem(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const cli::UsageError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(FlightOptions, AreAFolderAndFlags) {
  EXPECT_EQ(parse({"dir"}).folder, "dir");
  EXPECT_FALSE(parse({"dir"}).json);
  EXPECT_TRUE(parse({"--js", "dir"}).json);
  EXPECT_TRUE(parse({"dir", "--json"}).json);
  EXPECT_NE(parse({"-h"}).help, "");
  EXPECT_NE(parse({"--help"}).help, "");
  EXPECT_EQ(parse({"--", "--json"}).folder, "--json");
}

TEST(FlightOptions, MistakesAreNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(problem({}), HasSubstr("no folder is given"));
  EXPECT_THAT(problem({""}), HasSubstr("no folder is given"));
  EXPECT_THAT(problem({"a", "b"}), HasSubstr("'b' is one folder too many"));
  EXPECT_THAT(problem({"a", "--jsn"}), HasSubstr("did you mean '--json'?"));
  EXPECT_THAT(problem({"a", "--json=yes"}), HasSubstr("option '--json' takes no value"));
}

}  // namespace

// Dumps are read from a folder that may contain anything.

namespace {

namespace fs = std::filesystem;
using ddp::test::thrown_by;

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

struct FlightFolder : testing::Test {
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
    const auto error = test::error_of([&] { parse_rank_dump(text, "x.json"); });
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
  EXPECT_THAT(cause("hello"), HasSubstr("it is not JSON"));
  EXPECT_EQ(cause("[]"), "it is not a dump of a flight recorder");
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
  const Error error = thrown_by([&] { read_dump_folder(folder_); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("it has 300 MiB"));
}

TEST_F(FlightFolder, WithoutDumpsIsAnError) {
  const Error empty = thrown_by([&] { read_dump_folder(folder_); });
  EXPECT_THAT(empty.what(), HasSubstr("no file there is called *.json"));
  const Error missing = thrown_by([&] { read_dump_folder(folder_ / "none"); });
  EXPECT_THAT(missing.what(), HasSubstr("ENOENT"));
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

// What `ddp-info flight` prints.

namespace {

DumpFolder sample_folder() {
  DumpFolder folder;
  folder.job = "job7.0";
  folder.dumps.resize(2);
  folder.left_out = {"'x.json': it is empty"};
  return folder;
}

Analysis sample_analysis() {
  Analysis analysis;
  analysis.ranks = {0, 1, 2, 3};
  analysis.without_dump = {3};
  analysis.first = Finding{.kind = Divergence::other_size,
                           .group = "world",
                           .culprits = {1},
                           .others = {0, 2},
                           .sure = true,
                           .theirs = "all_reduce #4 of float32 x 5, sum",
                           .expected = "all_reduce #4 of float32 x 6, sum"};
  analysis.waits = {{.group = "world",
                     .ranks = {0, 2},
                     .operation = "all_reduce #4 of float32 x 6, sum",
                     .missing = {3},
                     .seconds = 12.34}};
  analysis.stragglers = {{.rank = 2, .last = 8, .of = 10, .seconds = 0.5, .longest = 0.25, .longest_at = "barrier #3"}};
  return analysis;
}

TEST(FlightReport, IsAFewLines) {
  EXPECT_EQ(text_report(sample_folder(), sample_analysis()),
            "job7.0: 4 ranks, files of 2; none of rank 3\n"
            "first, in group world:\n"
            "  rank 1 called all_reduce #4 of float32 x 5, sum: another size\n"
            "  ranks 0, 2 called all_reduce #4 of float32 x 6, sum\n"
            "waiting:\n"
            "  ranks 0, 2 in all_reduce #4 of float32 x 6, sum of group world for rank 3, 12.3 s\n"
            "slow:\n"
            "  rank 2 came last in 8 of 10 collectives; the others waited 0.500 s for it, 0.250 s in barrier #3\n"
            "left out:\n"
            "  'x.json': it is empty\n");
}

TEST(FlightReport, SaysWhatIsMissingAndWhatIsNotSure) {
  Analysis analysis;
  analysis.ranks = {0, 1};
  EXPECT_EQ(text_report({.job = "ddp"}, analysis),
            "ddp: 2 ranks, files of all\nno rank differs from the others, and none waits\n");
  analysis.first = Finding{.kind = Divergence::missing_call,
                           .group = "world",
                           .culprits = {1},
                           .others = {0},
                           .sure = false,
                           .theirs = "",
                           .expected = "barrier #1"};
  EXPECT_EQ(text_report({.job = "ddp"}, analysis),
            "ddp: 2 ranks, files of all\n"
            "first, in group world:\n"
            "  rank 1 has not called barrier #1: a call is missing\n"
            "  rank 0 called barrier #1\n"
            "  nothing shows which side is wrong\n");
  analysis.first->kind = Divergence::no_dump;
  analysis.first->sure = true;
  EXPECT_NE(
      text_report({.job = "ddp"}, analysis).find("rank 1 has left no file: it ended, or could not write its file"),
      std::string::npos);
  analysis.first->kind = Divergence::extra_call;
  analysis.first->theirs = "barrier #1";
  analysis.first->expected = "";
  EXPECT_NE(text_report({.job = "ddp"}, analysis)
                .find("  rank 1 called barrier #1: a call too many\n  rank 0 has not called it\n"),
            std::string::npos);
}

TEST(FlightReport, HasAllOfItAsJson) {
  const auto document = nlohmann::json::parse(json_report(sample_folder(), sample_analysis()));
  EXPECT_EQ(document["schema"], "ddp-info-flight/1");
  EXPECT_EQ(document["without_file"].dump(), "[3]");
  EXPECT_EQ(document["first"]["kind"], "other_size");
  EXPECT_EQ(document["first"]["ranks"].dump(), "[1]");
  EXPECT_EQ(document["first"]["others_called"], "all_reduce #4 of float32 x 6, sum");
  EXPECT_EQ(document["waits"][0]["waits_for"].dump(), "[3]");
  EXPECT_EQ(document["slow"][0]["longest_operation"], "barrier #3");
  EXPECT_EQ(document["left_out"][0], "'x.json': it is empty");
  EXPECT_EQ(document["files"].size(), 2U);
}

}  // namespace

// Any deviation of one rank of eight is found, with clocks that differ by minutes.

namespace {

using test::Fault;
using test::FlightJob;

/// Some other faults cannot be classified: a missing call looks like a different one if the next call is no longer
/// visible.
std::vector<Divergence> kinds_of(Fault fault) {
  using enum Divergence;
  const std::vector<Divergence> shifted{missing_call, extra_call,  other_order, other_operation,
                                        other_size,   other_dtype, other_root};
  switch (fault) {
    case Fault::killed: return {no_dump};
    case Fault::other_operation: return {other_operation};
    case Fault::other_size: return {other_size};
    case Fault::other_dtype: return {other_dtype};
    default: return shifted;
  }
}

struct Case {
  Fault fault;
  bool several_groups;
};

class RandomDivergence : public testing::TestWithParam<Case> {};

TEST_P(RandomDivergence, HasTheRightCulprit) {
  const auto [fault, several_groups] = GetParam();
  int stuck = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    for (const int depth : {1, 2, 5}) {
      // A ring smaller than what can be in progress would have lost it.
      FlightJob job(seed, fault, several_groups, depth, depth == 5 ? 60 : 16);
      if (job.run()) continue;  // two equal calls were swapped, or calls of two groups without a wait in between
      ++stuck;
      const auto dumps = job.dumps(seed % 2 == 0);
      const Analysis analysis = analyse(dumps);
      ASSERT_TRUE(analysis.first) << "seed " << seed << " depth " << depth;
      EXPECT_THAT(analysis.first->culprits, ElementsAre(job.culprit()))
          << "seed " << seed << " depth " << depth << ": " << to_string(analysis.first->kind);
      EXPECT_TRUE(analysis.first->sure);
      EXPECT_THAT(kinds_of(fault), testing::Contains(analysis.first->kind))
          << "seed " << seed << " depth " << depth << ": " << to_string(analysis.first->kind);
      EXPECT_FALSE(analysis.waits.empty());
    }
  }
  EXPECT_GE(stuck, 60);
}

INSTANTIATE_TEST_SUITE_P(Faults, RandomDivergence,
                         testing::Values(Case{Fault::killed, false}, Case{Fault::killed, true},
                                         Case{Fault::missing, false}, Case{Fault::missing, true},
                                         Case{Fault::extra, false}, Case{Fault::extra, true},
                                         Case{Fault::other_operation, false}, Case{Fault::other_operation, true},
                                         Case{Fault::other_size, false}, Case{Fault::other_size, true},
                                         Case{Fault::other_dtype, false}, Case{Fault::other_dtype, true},
                                         Case{Fault::swapped, false}, Case{Fault::swapped, true}));

/// If a rank makes one more call before it waits, and calls can be distinguished, the fault is certain.
TEST(FlightAnalysis, NamesTheKindOfAHundredRandomDivergences) {
  using enum Divergence;
  const std::vector<std::pair<Fault, Divergence>> faults{
      {Fault::killed, no_dump},     {Fault::missing, missing_call},  {Fault::other_operation, other_operation},
      {Fault::extra, extra_call},   {Fault::other_size, other_size}, {Fault::other_dtype, other_dtype},
      {Fault::swapped, other_order}};
  for (unsigned seed = 0; seed < 100; ++seed) {
    const auto [fault, kind] = faults[seed % faults.size()];
    FlightJob job(1000 + seed, fault, false, 2 + static_cast<int>(seed % 4), 60, true);
    ASSERT_FALSE(job.run()) << "seed " << seed;
    const Analysis analysis = analyse(job.dumps());
    ASSERT_TRUE(analysis.first) << "seed " << seed;
    EXPECT_EQ(analysis.first->kind, kind) << "seed " << seed << ": " << to_string(analysis.first->kind);
    EXPECT_THAT(analysis.first->culprits, ElementsAre(job.culprit())) << "seed " << seed;
    EXPECT_TRUE(analysis.first->sure);
  }
}

TEST(FlightAnalysis, FindsNothingWhereNothingIsWrong) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    FlightJob job(seed, Fault::none, true, 3, 1000);
    EXPECT_TRUE(job.run());
    const Analysis analysis = analyse(job.dumps());
    EXPECT_FALSE(analysis.first);
    EXPECT_TRUE(analysis.waits.empty());
    EXPECT_TRUE(analysis.without_dump.empty());
    EXPECT_EQ(analysis.ranks.size(), 8U);
  }
}

/// A dump of one rank in one group of all.
RankDump dump_of(int rank, std::vector<int> ranks) {
  RankDump dump;
  dump.rank = rank;
  dump.written_ns = 100'000'000'000;
  dump.groups.push_back({"world", rank, std::move(ranks), 0});
  return dump;
}

Call& add_call(RankDump& dump, OperationKind kind, std::size_t count, CallState state) {
  Operation operation;
  operation.kind = kind;
  operation.count = count;
  Call call;
  call.number = dump.calls.size() + 1;
  call.kind = kind;
  call.count = count;
  if (!call.is_transfer()) operation.sequence = ++dump.groups[0].last_queued;
  call.sequence = operation.sequence;
  call.fingerprint = operation.fingerprint();
  call.state = state;
  call.queued_ns = 90'000'000'000;
  return dump.calls.emplace_back(call);
}

TEST(FlightAnalysis, OfTwoRanksNeitherIsHeldForSure) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1}), dump_of(1, {0, 1})};
  add_call(dumps[0], OperationKind::all_reduce, 5, CallState::started);
  add_call(dumps[1], OperationKind::all_reduce, 6, CallState::started);
  const Analysis analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::other_size);
  EXPECT_FALSE(analysis.first->sure);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(1));
  EXPECT_THAT(analysis.first->others, ElementsAre(0));
  EXPECT_EQ(analysis.first->theirs, "all_reduce #1 of float32 x 6, sum");
  EXPECT_EQ(analysis.first->expected, "all_reduce #1 of float32 x 5, sum");
}

TEST(FlightAnalysis, WhatAllHaveCalledIsUnderWay) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  for (RankDump& dump : dumps) add_call(dump, OperationKind::all_reduce, 5, CallState::started);
  add_call(dumps[1], OperationKind::barrier, 0, CallState::queued);  // is ahead, and waits for its turn
  const Analysis analysis = analyse(dumps);
  EXPECT_FALSE(analysis.first);
  ASSERT_EQ(analysis.waits.size(), 1U);
  EXPECT_THAT(analysis.waits[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_TRUE(analysis.waits[0].missing.empty());
  EXPECT_DOUBLE_EQ(analysis.waits[0].seconds, 10);
}

TEST(FlightAnalysis, TransfersWaitForTheirPeer) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  add_call(dumps[0], OperationKind::recv, 5, CallState::started).root = 1;
  Analysis analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::missing_call);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(1));
  ASSERT_EQ(analysis.waits.size(), 1U);
  EXPECT_THAT(analysis.waits[0].missing, ElementsAre(1));

  // It waits for rank 2, which has not called anything.
  add_call(dumps[1], OperationKind::recv, 5, CallState::started).root = 2;
  analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(2));

  // Another size than the peer's.
  dumps[1].calls.clear();
  add_call(dumps[1], OperationKind::send, 7, CallState::started).root = 0;
  analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::other_size);
  EXPECT_FALSE(analysis.first->sure);
}

TEST(FlightAnalysis, WhoStaysForTheShortestTimeCameLast) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  for (int step = 0; step < 10; ++step) {
    for (RankDump& dump : dumps) {
      const std::int64_t hour = 3'600'000'000'000;
      Call& call = add_call(dump, OperationKind::all_reduce, 5, CallState::done);
      call.started_ns = (1 + dump.rank) * hour;  // each has its own clock
      call.finished_ns = call.started_ns + (dump.rank == 1 && step % 5 != 0 ? 1'000'000 : 21'000'000 + dump.rank);
    }
  }
  const Analysis analysis = analyse(dumps);
  EXPECT_FALSE(analysis.first);
  ASSERT_EQ(analysis.stragglers.size(), 1U);
  const Straggler& slow = analysis.stragglers[0];
  EXPECT_EQ(slow.rank, 1);
  EXPECT_EQ(slow.last, 8U);
  EXPECT_EQ(slow.of, 10U);
  EXPECT_NEAR(slow.seconds, 0.16, 1e-3);
  EXPECT_NEAR(slow.longest, 0.02, 1e-3);
}

}  // namespace

}  // namespace ddp::tools::flight
