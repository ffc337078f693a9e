// Checkpoints of real processes that are killed, or run out of disk, in the midst of a save.
#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;

struct SavedTraining : testing::Test {
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ddp_saved.XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Deadline patience() { return Deadline::after(std::chrono::seconds(120)); }
  /// Lets two ranks go on for some steps: where they started. All checks are the ranks'.
  long go_on(const std::string& steps) const {
    RankProcesses ranks(2, {built_program("rank_program"), "checkpoints", folder_, steps});
    const auto results = ranks.wait(patience());
    for (const RankResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.output;
    const auto place = results[0].output.find("RESTORED ");
    return place == std::string::npos ? -1 : std::stol(results[0].output.substr(place + 9));
  }
  /// Files of saves that have not ended.
  std::size_t unfinished() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      count += entry.path().extension() == ".tmp" ? 1 : 0;
    }
    return count;
  }

  /// Step of the newest checkpoint, which may be in the making; 0 without one.
  long newest() const {
    long step = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) step = std::max(step, std::stol(name.substr(5)));
    }
    return step;
  }

  std::string folder_;
};

TEST_F(SavedTraining, GoesOnFromTheFormerCheckpointWhenARankFallsInTheMidstOfItsFile) {
  EXPECT_EQ(go_on("3"), 0);
  for (const int victim : {0, 1}) {
    RankProcesses ranks(2, {built_program("rank_program"), "checkpoints", folder_, "1", std::to_string(victim)}, {},
                        victim == 0 ? 1 : 2);
    const auto results = ranks.wait(patience());
    const auto other = static_cast<std::size_t>(1 - victim);
    EXPECT_EQ(results[static_cast<std::size_t>(victim)].signal, SIGKILL);
    EXPECT_EQ(results[other].exit_code, 3) << results[other].output;
    EXPECT_NE(results[other].output.find("code=peer_lost ranks=[" + std::to_string(victim) + "]"), std::string::npos)
        << results[other].output;
    EXPECT_EQ(unfinished(), 1U);
    EXPECT_EQ(go_on("1"), victim == 0 ? 4 : 6);
    EXPECT_EQ(unfinished(), 0U) << "the next save clears up";
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3) << "owner, the newest two";
}

TEST_F(SavedTraining, HasAWholeCheckpointWheneverARankIsKilled) {
  std::mt19937 random(39);  // NOLINT: the same in each run
  long former = 0;
  for (int round = 0; round < 5; ++round) {
    RankProcesses ranks(2, {built_program("rank_program"), "checkpoints", folder_, "100000"});
    ASSERT_TRUE(ranks.all_wrote("SAVED", patience()));
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution(0, 60)(random)));
    ranks.signal(round % 2, SIGKILL);
    const auto results = ranks.wait(patience());
    EXPECT_EQ(results[static_cast<std::size_t>(1 - round % 2)].exit_code, 3);
    const long now = go_on("0");
    EXPECT_GT(now, former);
    former = now;
  }
}

TEST_F(SavedTraining, OfTwoJobsThatKeepTryingOneOwnsTheFolder) {
  const std::array<std::string, 2> numbers{"17", "18"};
  const auto start = [&](std::size_t job, const std::string& steps) {
    return std::make_unique<RankProcesses>(
        2, std::vector<std::string>{built_program("rank_program"), "checkpoints", folder_, steps},
        std::vector<std::string>{"SLURM_JOB_ID=" + numbers[job]});
  };
  std::array jobs{start(0, "100000"), start(1, "100000")};
  std::size_t owner = jobs.size();
  for (const Deadline limit = patience(); owner == jobs.size() && !limit.expired();) {
    for (std::size_t job = 0; job < jobs.size() && owner == jobs.size(); ++job) {
      if (jobs[job]->all_wrote("SAVED", Deadline::after(std::chrono::milliseconds(50)))) owner = job;
    }
  }
  ASSERT_LT(owner, jobs.size()) << "both were refused, or stall";
  const std::size_t other = 1 - owner;
  const std::string cause = "Slurm job " + numbers[owner] + ", process ";
  const std::string refused = "saves there; Slurm job " + numbers[other] + ", process ";
  int rounds = 0;
  for (const Deadline end = Deadline::after(std::chrono::seconds(5)); rounds < 3 || !end.expired(); ++rounds) {
    const long before = newest();
    for (const RankResult& result : jobs[other]->wait(patience())) {
      EXPECT_EQ(result.exit_code, 3) << result.output;
      EXPECT_NE(result.output.find("code=conflict ranks=[0]"), std::string::npos) << result.output;
      EXPECT_NE(result.output.find(cause), std::string::npos) << result.output;
      EXPECT_NE(result.output.find(refused), std::string::npos) << result.output;
    }
    EXPECT_GE(newest(), before) << "a refused job removes nothing";
    jobs[other] = start(other, "1");
  }
  jobs[other]->wait(patience());
  const long last = newest();
  for (const int rank : {0, 1}) jobs[owner]->signal(rank, SIGKILL);
  for (const RankResult& result : jobs[owner]->wait(patience())) EXPECT_EQ(result.signal, SIGKILL) << result.output;
  EXPECT_GE(go_on("1"), last - 1) << "a killed one is followed at once, by its newest checkpoint";
}

TEST_F(SavedTraining, ARequeuedJobGoesOnWhileTheOldOneStillSaves) {
  RankProcesses old(2, {built_program("rank_program"), "checkpoints", folder_, "100000"}, {"SLURM_JOB_ID=17"});
  ASSERT_TRUE(old.all_wrote("SAVED", patience()));
  RankProcesses next(2, {built_program("rank_program"), "checkpoints", folder_, "20"},
                     {"SLURM_JOB_ID=17", "SLURM_RESTART_COUNT=1"});
  for (const RankResult& result : next.wait(patience())) EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const RankResult& result : old.wait(patience())) {
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("Slurm job 17, requeue 1, process "), std::string::npos) << result.output;
  }
  EXPECT_GT(go_on("0"), 20) << "the newest is whole";
}

TEST_F(SavedTraining, OutlivesAFullDisk) {
  RankProcesses ranks(2, {built_program("rank_program"), "full-disk", folder_});
  for (const RankResult& result : ranks.wait(patience())) EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace
}  // namespace ddp::test
