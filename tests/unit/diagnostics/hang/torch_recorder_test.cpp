// A rank that is asked for a dump by its pipe, as NCCL's watchdog looks at it: late, in pieces, or never. The rank and
// its /proc are made up.
#include <poll.h>

#include <ddp/error.hpp>

#include "base/unique_fd.hpp"
#include "diagnostics/hang/hang_judge.hpp"
#include "diagnostics/hang/torch_pickle.hpp"
#include "diagnostics/hang/torch_recorder.hpp"
#include "diagnostics/hang/whereabouts.hpp"
#include "support/checkout.hpp"

namespace ddp::diagnostics {
namespace {

namespace fs = std::filesystem;

struct TorchRecorderTest : ::testing::Test {
  TorchRecorderTest() {
    std::string name = (fs::temp_directory_path() / "torch-recorder-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp: " << name;
    folder_ = name;
    const fs::path process = folder_ / "proc/123";
    fs::create_directories(process);
    fs::create_symlink("/", process / "root");
    std::ofstream(process / "maps") << "7f00-7f01 r-xp 0 0:0 0 /opt/torch/lib/libtorch_cpu.so\n";
    std::ofstream(process / "environ", std::ios::binary)
        << "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" << (folder_ / "ask").string() << '\0'
        << "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" << (folder_ / "dump").string() << '\0';
    EXPECT_EQ(::mkfifo((folder_ / "ask0.pipe").c_str(), 0600), 0);
    pipe_.reset(::open((folder_ / "ask0.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    RankFacts rank;
    rank.pid = 123;
    rank.rank = 0;
    rank.world_size = 2;
    rank.state = 'S';
    facts_.ranks.push_back(rank);
  }
  ~TorchRecorderTest() override { fs::remove_all(folder_); }

  bool asked() const {
    pollfd entry{.fd = pipe_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 60'000) == 1;
  }
  void ask(std::chrono::milliseconds limit) { ask_torch((folder_ / "proc").string(), facts_, Deadline::after(limit)); }

  fs::path folder_;
  base::UniqueFd pipe_;
  HostFacts facts_;
};

TEST_F(TorchRecorderTest, AnotherUsersPipeIsNotWrittenTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs files of two users";
  ASSERT_EQ(::chown((folder_ / "ask0.pipe").c_str(), 12'002, 12'002), 0);
  ask(std::chrono::seconds(1));
  char byte = 0;
  EXPECT_LT(::read(pipe_.get(), &byte, 1), 1);
}

TEST_F(TorchRecorderTest, LinksDoNotLeadOutOfTheRanksRoot) {
  fs::create_directories(folder_ / "root/inner");
  fs::rename(folder_ / "ask0.pipe", folder_ / "elsewhere.pipe");
  fs::create_directory_symlink(folder_, folder_ / "root/out");          // absolute: in the rank's root there is none
  fs::create_directory_symlink("../..", folder_ / "root/inner/above");  // stays in the root
  fs::create_directory_symlink("/inner", folder_ / "root/link");
  fs::remove(folder_ / "proc/123/root");
  fs::create_directory_symlink(folder_ / "root", folder_ / "proc/123/root");
  const auto opens = [&](const std::string& path) {
    return static_cast<bool>(open_rank_file((folder_ / "proc").string(), 123, path, S_IFIFO, O_WRONLY));
  };
  EXPECT_FALSE(opens("/out/elsewhere.pipe"));
  EXPECT_FALSE(opens("/inner/above/../elsewhere.pipe"));
  EXPECT_FALSE(opens((folder_ / "elsewhere.pipe").string()));
  ASSERT_EQ(::mkfifo((folder_ / "root/inner/own.pipe").c_str(), 0600), 0);
  const base::UniqueFd reader{::open((folder_ / "root/inner/own.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  EXPECT_TRUE(opens("/inner/own.pipe"));
  EXPECT_TRUE(opens("/link/own.pipe")) << "its own links are its own";
  fs::create_directory_symlink(folder_ / "root/inner", folder_ / "proc/123/cwd");
  EXPECT_TRUE(opens("own.pipe"));
  EXPECT_TRUE(opens("../inner/own.pipe"));
}

TEST_F(TorchRecorderTest, ADumpThatComesLateAndInPiecesIsTaken) {
  std::ifstream recorded(ddp::test::source_root() / "tests/fuzz/corpus/fuzz_torch_trace/gloo.json", std::ios::binary);
  const std::string dump{std::istreambuf_iterator<char>{recorded}, std::istreambuf_iterator<char>{}};
  ASSERT_FALSE(dump.empty());
  std::thread rank([&] {
    if (!asked()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::ofstream file(folder_ / "dump0", std::ios::binary);
    file << dump.substr(0, dump.size() / 2) << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    file << dump.substr(dump.size() / 2);
  });
  ask(std::chrono::seconds(60));
  rank.join();
  EXPECT_EQ(facts_.ranks[0].flight_source, FlightSource::torch);
  ASSERT_TRUE(facts_.ranks[0].flight);
  EXPECT_FALSE(facts_.ranks[0].flight->groups.empty());
  EXPECT_THAT(facts_.notes, IsEmpty());
}

TEST_F(TorchRecorderTest, WhoWritesNoneIsSaidAndNotWaitedForForever) {
  ask(std::chrono::milliseconds(700));
  EXPECT_TRUE(asked());
  EXPECT_EQ(facts_.ranks[0].flight_source, FlightSource::torch_unread);
  EXPECT_FALSE(facts_.ranks[0].flight);
  EXPECT_THAT(facts_.notes, ElementsAre(HasSubstr("rank 0 has a pipe that asks for a dump")));
}

}  // namespace

// Dumps of PyTorch's flight recorder: those that two ranks of PyTorch 2.13 on Gloo have written, and made-up ones.

namespace {

using flight::FlightView;

std::string recorded_dump(const std::string& name) {
  std::ifstream file{ddp::test::source_root() / "tests/fuzz/corpus/fuzz_torch_trace" / name, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{}};
}

FlightView view_of(const std::string& dump, int rank = 0, std::int64_t now_ns = 2'000'000'000'000'000'000) {
  FlightView view;
  view.rank = rank;
  view.world_size = 2;
  add_torch_trace(dump, now_ns, view);
  return view;
}

std::string refusal_of(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return "taken";
}

TEST(TorchTrace, ReadsWhatGloosRanksWroteInJsonAndAsPickle) {
  for (const char* name : {"gloo.json", "gloo.pickle"}) {
    SCOPED_TRACE(name);
    const FlightView view = view_of(recorded_dump(name));
    ASSERT_THAT(view.groups, SizeIs(2));
    EXPECT_EQ(view.groups[0].name, "gloo:0 default_pg");
    EXPECT_THAT(view.groups[0].members, ElementsAre(0, 1));
    EXPECT_EQ(view.groups[0].last_queued, 1U);
    EXPECT_EQ(view.groups[1].name, "gloo:1");
    EXPECT_THAT(view.groups[1].members, IsEmpty());
    EXPECT_EQ(view.recorded, 2U);
    EXPECT_EQ(view.finished, 1U);
    ASSERT_THAT(view.unfinished, SizeIs(1));
    EXPECT_EQ(describe(view.unfinished[0]), "broadcast #1 of group 'gloo:1'");
    EXPECT_EQ(view.unfinished[0].count, 10U);
    EXPECT_GT(view.unfinished[0].age_s, 1e6);
  }
}

// As ProcessGroupNCCL records: with members, transfers, and operations that the watchdog has given up.
constexpr const char* kNccl =
    R"({"version": "2.10", "pg_config": {"7": {"name": "7", "desc": "pair", "ranks": "[1, 3]"}},
  "entries": [
    {"process_group": ["7", "pair"], "profiling_name": "nccl:all_gather", "collective_seq_id": 4, "p2p_seq_id": 0,
     "is_p2p": false, "input_sizes": [[8]], "time_created_ns": 1000000000, "retired": true, "state": "started",
     "time_discovered_completed_ns": null},
    {"process_group": ["7", "pair"], "profiling_name": "nccl:send 1->0", "collective_seq_id": 4, "p2p_seq_id": 2,
     "is_p2p": true, "input_sizes": [[8]], "time_created_ns": 3000000000, "retired": true, "state": "completed",
     "time_discovered_completed_ns": 4000000000}]})";

TEST(TorchTrace, KnowsMembersTransfersAndWhatHasTimedOut) {
  const FlightView view = view_of(kNccl, 3, 11'000'000'000);
  ASSERT_THAT(view.groups, SizeIs(1));
  EXPECT_EQ(view.groups[0].name, "nccl:7 pair");
  EXPECT_THAT(view.groups[0].members, ElementsAre(1, 3));
  EXPECT_EQ(view.groups[0].rank, 1);
  ASSERT_THAT(view.unfinished, SizeIs(1));
  EXPECT_EQ(describe(view.unfinished[0]), "all_gather #4 of group 'nccl:7 pair'");
  EXPECT_DOUBLE_EQ(view.unfinished[0].age_s, 10);
  ASSERT_TRUE(view.last);
  EXPECT_EQ(describe(*view.last), "send to member 0 of group 'nccl:7 pair'");
  EXPECT_DOUBLE_EQ(view.last->end_s, 7);
}

TEST(TorchTrace, RefusesWhatIsNoDump) {
  const std::string pickle = recorded_dump("gloo.pickle");
  for (const std::string& dump :
       {std::string{}, std::string{"{"}, std::string{"{}"}, std::string{R"({"version": "3.0"})"},
        std::string{R"({"version": "2.10", "entries": [{}]})"}, pickle.substr(0, 700)}) {
    EXPECT_THAT(refusal_of([&] { view_of(dump); }), HasSubstr("PyTorch's flight recorder")) << dump.substr(0, 40);
  }
}

TEST(TorchPickle, HoldsPlainDataOnly) {
  using namespace std::string_literals;
  EXPECT_EQ(pickle_to_json("\x80\x02}(X\x01\x00\x00\x00"s
                           "a](K\x05J\xff\xff\xff\xff\x8a\x02\x00\x80\x88Neu."s),
            R"({"a":[5,-1,-32768,true,null]})");
  EXPECT_EQ(pickle_to_json("\x80\x02X\x02\x00\x00\x00\"\xe9q\x00h\x00\x86."s), R"(["\"?","\"?"])");
  // os.system("id"), by GLOBAL and REDUCE: what makes pickles dangerous.
  EXPECT_THAT(refusal_of([] { pickle_to_json("cos\nsystem\n(X\x02\x00\x00\x00idtR."s); }), HasSubstr("opcode 0x63"));
  for (const std::string& wrong : {"."s, "\x80\x02"s, "N"s, "NN."s, "e."s, "(e."s, "]u."s, "h\x05."s, "}(Ku."s,
                                   "}(K\x01Nu."s, "\x87."s, "X\xff\xff\xff\xff"s, std::string(100, '(') + "."}) {
    EXPECT_NE(refusal_of([&] { pickle_to_json(wrong); }), "taken");
  }
  // A list of two of the list before, and so on: 2^40 elements.
  std::string many = "]q"s + '\0';
  for (int i = 0; i < 40; ++i)
    many += "](h"s + static_cast<char>(i) + "h" + static_cast<char>(i) + "eq" + static_cast<char>(i + 1);
  EXPECT_THAT(refusal_of([&] { pickle_to_json(many + "."); }), HasSubstr("too large"));
}

RankFacts torch_rank(int rank, std::uint64_t called, bool inside, const std::string& call) {
  RankFacts facts;
  facts.rank = rank;
  facts.world_size = 3;
  facts.state = 'S';
  facts.call = call;
  facts.steady = true;
  facts.flight_source = FlightSource::torch;
  FlightView& view = facts.flight.emplace();
  view.groups.push_back({.name = "gloo:0 default_pg",
                         .backend = "gloo",
                         .rank = rank,
                         .size = 3,
                         .members = {0, 1, 2},
                         .last_queued = called});
  view.last = FlightView::Call{
      .group = "gloo:0 default_pg", .operation = "all_reduce", .sequence = called, .age_s = 12, .end_s = -1};
  if (inside) view.unfinished.push_back(*view.last);
  return facts;
}

HangVerdict verdict_of(std::vector<RankFacts> ranks) {
  return judge_hang(join_hosts({{.host = "n1", .ranks = std::move(ranks)}}, true), 5);
}

TEST(TorchTrace, TellsWhoIsMissing) {
  const HangVerdict verdict = verdict_of(
      {torch_rank(0, 8, true, "futex"), torch_rank(1, 7, false, "clock_nanosleep"), torch_rank(2, 8, true, "futex")});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_FALSE(verdict.likely);
  EXPECT_EQ(
      verdict.text,
      "rank 1 is asleep in clock_nanosleep, last all_reduce #7 of group 'gloo:0 default_pg'; ranks 0, 2 wait for it "
      "in all_reduce #8 of group 'gloo:0 default_pg', for 12 s");
}

TEST(TorchTrace, AccusesNobodyOfWhatIsNotKnown) {
  // Rank 1's recorder could not be read: only its process tells.
  RankFacts unread = torch_rank(1, 7, false, "clock_nanosleep");
  unread.flight.reset();
  unread.flight_source = FlightSource::torch_unread;
  HangVerdict verdict = verdict_of({torch_rank(0, 8, true, "futex"), unread, torch_rank(2, 8, true, "futex")});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_TRUE(verdict.likely);
  unread.call = "futex";
  verdict = verdict_of({torch_rank(0, 8, true, "futex"), unread, torch_rank(2, 8, true, "futex")});
  EXPECT_EQ(verdict.answer, HangAnswer::cannot_tell);
  // Members that Gloo does not name may wait in a group: who is known to be behind is missing, else nobody is.
  RankFacts first = torch_rank(0, 8, true, "futex");
  first.flight->groups[0].members.clear();
  verdict = verdict_of({first, torch_rank(1, 7, false, "futex"), torch_rank(2, 8, true, "futex")});
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  verdict = verdict_of({first, torch_rank(1, 8, true, "futex"), torch_rank(2, 8, true, "futex")});
  EXPECT_EQ(verdict.answer, HangAnswer::cannot_tell);
  // Gloo records no send and recv.
  verdict = verdict_of(
      {torch_rank(0, 8, false, "futex"), torch_rank(1, 8, false, "futex"), torch_rank(2, 8, false, "futex")});
  EXPECT_EQ(verdict.answer, HangAnswer::cannot_tell);
}

}  // namespace

}  // namespace ddp::diagnostics
