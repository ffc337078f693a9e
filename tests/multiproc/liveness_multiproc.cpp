// Ranks that are stopped for some seconds or get a twentieth of a core are not called dead, and ranks that are dead are
// named in time even if no connection says so.
#include <list>

#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

Deadline soon() { return Deadline::after(seconds(60)); }

/// Training that nothing but a failure ends. The deadline of its operations is far.
std::vector<std::string> endless(const std::string& extra = "") {
  std::vector<std::string> command{built_program("rank_program"), "loop", "100", "1000"};
  if (!extra.empty()) command.push_back(extra);
  return command;
}

void expect_named(const RankResult& result, int victim, milliseconds limit) {
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_THAT(result.output, HasSubstr("code=peer_lost ranks=[" + std::to_string(victim) + "]"));
  const auto place = result.output.rfind("WAITED ");
  ASSERT_NE(place, std::string::npos) << result.output;
  EXPECT_LT(std::stod(result.output.substr(place + 7)), std::chrono::duration<double>(limit).count());
}

std::vector<std::string> peer_timeout(int limit) { return {"DDP_PEER_TIMEOUT=" + std::to_string(limit)}; }

// Four jobs at once. In three of them one rank after the other is stopped for 2 s, each a little before the last one
// goes on: so the operation does not end, and all are asked. In the last job a rank gets a twentieth of its time.
TEST(Liveness, StoppedAndStarvedRanksAreNotDead) {
  constexpr int kRanks = 3;
  std::list<RankProcesses> jobs;
  for (int job = 0; job < 4; ++job) {
    jobs.emplace_back(kRanks, endless(), peer_timeout(8), kTwoNodes.memory_domains);
  }
  for (RankProcesses& job : jobs) ASSERT_TRUE(job.all_wrote("READY", soon()));
  std::mt19937 random{11};  // NOLINT(cert-msc51-cpp): the same in every run
  std::vector<int> offsets;
  for (std::size_t job = 0; job < jobs.size(); ++job) offsets.push_back(static_cast<int>(random() % 57));
  for (int tick = 0; tick < 60; ++tick) {
    std::size_t number = 0;
    for (RankProcesses& job : jobs) {
      const int offset = offsets[number++];
      for (int rank = 0; number < jobs.size() && rank < kRanks; ++rank) {
        job.signal(rank, (tick + offset + 19 * rank) % 57 < 20 ? SIGSTOP : SIGCONT);
      }
    }
    jobs.back().signal(1, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(95));
    jobs.back().signal(1, SIGCONT);
    std::this_thread::sleep_for(milliseconds(5));
  }
  for (RankProcesses& job : jobs) {
    for (int rank = 0; rank < kRanks; ++rank) job.signal(rank, SIGCONT);
    for (const RankResult& result : job.wait(Deadline::after(milliseconds(100)))) {
      EXPECT_FALSE(result.ended) << result.output;
      EXPECT_THAT(result.output, Not(HasSubstr("ERROR")));
    }
  }
}

TEST(Liveness, ARankThatStopsForGoodIsNamedWithinThePeerTimeout) {
  RankProcesses ranks(4, endless(), peer_timeout(5), kTwoNodes.memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", soon()));
  ranks.signal(2, SIGSTOP);
  const auto results = ranks.wait(soon(), 2);
  for (const std::size_t rank : {0U, 1U, 3U}) {
    expect_named(results[rank], 2, seconds(20));  // 5 s, on a machine that has nothing else to do
    EXPECT_THAT(results[rank].output, HasSubstr("gave no sign of life for"));
  }
}

/// As gang scheduling and `scontrol suspend` do it: for longer than operations may take.
TEST(Liveness, AJobThatIsSuspendedGoesOn) {
  std::list<RankProcesses> jobs;
  for (const Over& over : {kSharedMemory, kTwoNodes}) {
    jobs.emplace_back(3, std::vector<std::string>{built_program("rank_program"), "loop", "3", "1000"}, peer_timeout(30),
                      over.memory_domains);
  }
  const auto signal_all = [&](int signal) {
    for (RankProcesses& job : jobs) {
      for (int rank = 0; rank < 3; ++rank) job.signal(rank, signal);
    }
  };
  for (RankProcesses& job : jobs) ASSERT_TRUE(job.all_wrote("READY", soon()));
  std::this_thread::sleep_for(milliseconds(1000));  // what follows is noticed from now on
  for (int times = 0; times < 2; ++times) {
    signal_all(SIGSTOP);
    std::this_thread::sleep_for(seconds(4));
    signal_all(SIGCONT);
    std::this_thread::sleep_for(milliseconds(500));
  }
  // one alone is still found, within the time of an operation
  for (RankProcesses& job : jobs) {
    job.signal(1, SIGSTOP);
    const auto results = job.wait(soon(), 1);
    for (const std::size_t rank : {0U, 2U}) expect_named(results[rank], 1, seconds(10));
  }
}

/// While the ranks meet: rank 1 comes when rank 0, which waits for it, has been stopped for longer than that may take.
TEST(Liveness, ARankThatIsSuspendedWhileItWaitsForOthersHasItsTime) {
  const char* const kScript = "echo HERE; [ \"$PMI_RANK\" != 1 ] || kill -STOP $$; exec \"$0\" world";
  RankProcesses ranks(2, {"/bin/sh", "-c", kScript, built_program("rank_program")}, {"DDP_INIT_TIMEOUT=4"});
  ASSERT_TRUE(ranks.all_wrote("HERE", soon()));
  std::this_thread::sleep_for(milliseconds(1000));
  ranks.signal(0, SIGSTOP);
  std::this_thread::sleep_for(seconds(5));
  ranks.signal(0, SIGCONT);
  ranks.signal(1, SIGCONT);
  for (const RankResult& result : ranks.wait(soon())) EXPECT_EQ(result.exit_code, 0) << result.output;
}

/// Named by all survivors, for a reason that has @p word.
void expect_dead_parent_named(const std::string& child, int peer_timeout_s, const std::string& word) {
  RankProcesses ranks(4, endless(child), peer_timeout(peer_timeout_s), kTcp.memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", soon()));
  ranks.signal(1, SIGKILL);
  const auto results = ranks.wait(soon());
  for (const RankResult& result : results) {
    const auto place = result.output.find("CHILD ");
    ASSERT_NE(place, std::string::npos);
    ::kill(std::stoi(result.output.substr(place + 6)), SIGKILL);
  }
  for (const std::size_t rank : {0U, 2U, 3U}) {
    expect_named(results[rank], 1, seconds(20));
    EXPECT_THAT(results[rank].output, HasSubstr(word));
  }
}

// Its connections are close-on-exec: they tell of its death at once.
TEST(Liveness, ARankWhoseProgramsOutliveItIsNamed) { expect_dead_parent_named("exec", 50, "rank 1 died or left"); }

// Nor do forked ones have them, such as a data loader's workers.
TEST(Liveness, ARankWhoseForksOutliveItIsNamed) { expect_dead_parent_named("fork", 50, "rank 1 died or left"); }

// One dies while another is stopped for 2 s: only the dead one is named.
TEST(Liveness, AStoppedRankIsNotBlamedForADeath) {
  RankProcesses ranks(4, endless(), peer_timeout(10), kTwoNodes.memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", soon()));
  ranks.signal(3, SIGSTOP);
  ranks.signal(1, SIGKILL);
  std::this_thread::sleep_for(seconds(2));
  ranks.signal(3, SIGCONT);
  const auto results = ranks.wait(soon());
  for (const std::size_t rank : {0U, 2U}) expect_named(results[rank], 1, seconds(20));
  EXPECT_EQ(results[3].exit_code, 3) << results[3].output;
}

}  // namespace
}  // namespace ddp::test
