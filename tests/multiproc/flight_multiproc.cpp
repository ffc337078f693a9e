// The files of real ranks' flight recorders name the rank that made the job fail.
#include "flight/analysis.hpp"
#include "flight/rank_dump.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;
using tools::flight::Analysis;
using tools::flight::Divergence;
using tools::flight::DumpFolder;

constexpr int kWorld = 4;

struct FlightFiles : testing::Test {
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_flight.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> environment() const {
    return {"DDP_FLIGHT_DIR=" + folder_.string(), "DDP_FLIGHT_SIGNAL=USR1"};
  }
  DumpFolder read() const { return tools::flight::read_dump_folder(folder_); }

  fs::path folder_;
};

TEST_F(FlightFiles, OfAnotherSizeNameItsRank) {
  RankProcesses ranks(kWorld, {built_program("rank_program"), "differ", "size", "2", "100"}, environment());
  for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(90)))) {
    EXPECT_EQ(result.exit_code, 3) << result.output;
  }
  const DumpFolder folder = read();
  EXPECT_THAT(folder.left_out, IsEmpty());
  const Analysis analysis = analyse(folder.dumps);
  EXPECT_THAT(analysis.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(analysis.without_dump, IsEmpty());
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::other_size);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(2));
  EXPECT_TRUE(analysis.first->sure);
  EXPECT_EQ(analysis.first->theirs, "all_reduce #2 of float32 x 2000, sum");
  EXPECT_EQ(analysis.first->expected, "all_reduce #2 of float32 x 1000, sum");
}

TEST_F(FlightFiles, OfARankThatStaysAwayNameIt) {
  RankProcesses ranks(kWorld, {built_program("rank_program"), "differ", "absent", "1", "5"}, environment());
  ranks.wait(Deadline::after(std::chrono::seconds(60)));
  const Analysis analysis = analyse(read().dumps);
  EXPECT_THAT(analysis.without_dump, IsEmpty());
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::missing_call);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(1));
  ASSERT_EQ(analysis.waits.size(), 1U);
  EXPECT_THAT(analysis.waits[0].ranks, ElementsAre(0, 2, 3));
  EXPECT_THAT(analysis.waits[0].missing, ElementsAre(1));
}

TEST_F(FlightFiles, AppearAtASignalAndWhenARankIsKilled) {
  RankProcesses ranks(kWorld, {built_program("rank_program"), "loop", "60", "1000"}, environment());
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  ranks.signal(1, SIGUSR1);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  const auto written = [&] { return fs::exists(folder_ / "ddp.rank1.json"); };
  while (!written() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  DumpFolder folder = read();
  ASSERT_EQ(folder.dumps.size(), 1U);
  EXPECT_EQ(folder.dumps[0].rank, 1);
  EXPECT_EQ(folder.dumps[0].reason, "SIGUSR1");
  EXPECT_FALSE(folder.dumps[0].calls.empty());

  ranks.signal(2, SIGKILL);
  ranks.wait(Deadline::after(std::chrono::seconds(90)));
  folder = read();
  const Analysis analysis = analyse(folder.dumps);
  EXPECT_THAT(analysis.without_dump, ElementsAre(2));
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::no_dump);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(2));
}

}  // namespace
}  // namespace ddp::test
