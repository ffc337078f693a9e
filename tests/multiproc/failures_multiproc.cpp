// A rank dies, stops, stays away or calls something else: every survivor must name it, in time.
#include <list>

#include "over.hpp"
#include "support/checkout.hpp"
#include "support/rank_processes.hpp"

namespace ddp::test {
namespace {

constexpr int kWorld = 4;
constexpr int kVictim = 2;

/// The number behind "WAITED ", in seconds; -1 when there is none.
double waited(const std::string& output) {
  const auto place = output.rfind("WAITED ");
  return place == std::string::npos ? -1 : std::stod(output.substr(place + 7));
}

/// The ranks that its error names.
std::string named_by(const RankResult& result) {
  const auto begin = result.output.find("ranks=[");
  return begin == std::string::npos ? "" : result.output.substr(begin + 7, result.output.find(']', begin) - begin - 7);
}

void expect_error(const RankResult& result, const std::string& code, const std::string& ranks) {
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("code=" + code + " ranks=[" + ranks + "]"), std::string::npos) << result.output;
}

class LostRank : public testing::TestWithParam<Over> {};
using Transfer = LostRank;

TEST_P(LostRank, KilledInAllReduceIsNamedByAllSurvivorsAtOnce) {
  RankProcesses ranks(kWorld, {built_program("rank_program"), "loop", "60", "100000"}, {}, GetParam().memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.signal(kVictim, SIGKILL);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (int rank = 0; rank < kWorld; ++rank) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    if (rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL);
      continue;
    }
    expect_error(result, "peer_lost", "2");
    EXPECT_LT(waited(result.output), 30) << "a closed connection must not wait for the deadline of 60 s";
  }
}

TEST_P(LostRank, SeveralKilledAtOnceAreAllNamed) {
  RankProcesses ranks(kWorld, {built_program("rank_program"), "loop", "60", "1000"}, {}, GetParam().memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  ranks.signal(1, SIGSTOP);  // so that it does not report the death of the other
  ranks.signal(3, SIGSTOP);
  ranks.signal(1, SIGKILL);
  ranks.signal(3, SIGKILL);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  // the kernel ends them one after the other: a rank that asks in between may find the second alive
  const std::string named = named_by(results[0]);
  EXPECT_TRUE(named == "1,3" || named == "1" || named == "3") << results[0].output;
  expect_error(results[2], "peer_lost", named);
}

/// How often, by hand: DDP_TEST_DEATHS.
int rounds_of_deaths() {
  const char* const text = std::getenv("DDP_TEST_DEATHS");
  return text == nullptr ? 6 : std::atoi(text);
}

class SeveralDeaths : public testing::TestWithParam<Over> {};

TEST_P(SeveralDeaths, WithinMillisecondsAreTheSameForAllSurvivors) {
  std::mt19937 random{17};  // NOLINT(cert-msc51-cpp): the same in every run
  int partial = 0;
  std::vector<double> waits;  // the longest of each round
  for (int round = 0; round < rounds_of_deaths(); ++round) {
    const int size = 6 + round % 3;
    RankProcesses ranks(size, {built_program("rank_program"), "loop", "60", round % 2 == 0 ? "1000" : "100000"}, {},
                        GetParam().memory_domains);
    ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
    std::vector<int> victims(static_cast<std::size_t>(size));
    std::iota(victims.begin(), victims.end(), 0);
    std::shuffle(victims.begin(), victims.end(), random);
    const std::vector<int> survivors(victims.begin() + 2 + round % 2, victims.end());
    victims.resize(2U + static_cast<unsigned>(round) % 2U);
    for (const int victim : victims) {
      ranks.signal(victim, SIGKILL);
      const auto next = Deadline::after(std::chrono::microseconds(random() % 3000));
      while (!next.expired()) continue;  // a sleep is not as exact
    }
    const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
    const std::string named = named_by(results[static_cast<std::size_t>(survivors[0])]);
    std::istringstream numbers(named);
    int count = 0;
    for (std::string number; std::getline(numbers, number, ','); ++count) {
      EXPECT_NE(std::find(victims.begin(), victims.end(), std::stoi(number)), victims.end()) << named;
    }
    waits.push_back(0);
    for (const int rank : survivors) {
      SCOPED_TRACE("round " + std::to_string(round) + ", rank " + std::to_string(rank));
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      expect_error(result, "peer_lost", named);
      waits.back() = std::max(waits.back(), waited(result.output));
    }
    if (count < static_cast<int>(victims.size())) ++partial;
  }
  RecordProperty("rounds_that_name_some_of_the_dead", partial);
  std::sort(waits.begin(), waits.end());
  RecordProperty("median_s", std::to_string(waits[waits.size() / 2]));
  RecordProperty("longest_s", std::to_string(waits.back()));
  EXPECT_LT(waits.back(), 30) << "a death must not wait for the deadline of 60 s";
}

INSTANTIATE_TEST_SUITE_P(Over, SeveralDeaths, testing::Values(kSharedMemory, kTwoNodes, kTcp),
                         [](const auto& each) { return std::string(each.param.name); });

INSTANTIATE_TEST_SUITE_P(Over, LostRank, testing::Values(kSharedMemory, kTcp),
                         [](const auto& each) { return std::string(each.param.name); });

/// The same job over each, at the same time: they do little but wait.
struct Deadlines : testing::Test {
  std::list<RankProcesses> start(const std::vector<std::string>& command) {
    std::list<RankProcesses> jobs;
    for (const Over& over : {kSharedMemory, kTwoNodes})
      jobs.emplace_back(kWorld, command, std::vector<std::string>{}, over.memory_domains);
    return jobs;
  }
};

TEST_F(Deadlines, AStoppedRankIsNamedByAllSurvivorsWithinThem) {
  std::list<RankProcesses> jobs = start({built_program("rank_program"), "loop", "8", "100000"});
  for (RankProcesses& ranks : jobs) ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (RankProcesses& ranks : jobs) ranks.signal(kVictim, SIGSTOP);
  for (RankProcesses& ranks : jobs) {
    const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)), kVictim);
    for (int rank = 0; rank < kWorld; ++rank) {
      if (rank == kVictim) continue;
      const RankResult& result = results[static_cast<std::size_t>(rank)];
      expect_error(result, "peer_lost", "2");
      EXPECT_LE(waited(result.output), 8.0 + 0.5) << "the deadline was 8 s";
    }
  }
}

TEST_F(Deadlines, ARankThatStaysAwayIsNamedThoughItIsAlive) {
  std::list<RankProcesses> jobs = start({built_program("rank_program"), "differ", "absent", "1", "6"});
  for (RankProcesses& ranks : jobs) {
    const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
    for (std::size_t rank = 0; rank < kWorld; ++rank) {
      expect_error(results[rank], "timeout", "1");
      if (rank == 1) continue;  // it came after the deadline
      EXPECT_LE(waited(results[rank].output), 6.0 + 5) << "the deadline is 6 s";
    }
  }
}

TEST_F(Deadlines, ARankThatRunsTooSlowlyToAnswerIsNotCalledStopped) {
  RankProcesses ranks(3, {built_program("rank_program"), "differ", "starved", "1", "5"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (const std::size_t rank : {0U, 2U}) {
    expect_error(results[rank], "timeout", "1");
    EXPECT_NE(results[rank].output.find("rank 1 is too slow to answer"), std::string::npos) << results[rank].output;
  }
}

/// On two nodes, with ranks in turn: ranks 0 and 1 lead them.
class Death : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(Death, OfALeaderOrMemberIsNamedByTheRanksOfBothNodes) {
  const auto [victim, size] = GetParam();
  RankProcesses ranks(kWorld, {built_program("rank_program"), "loop", "60", size}, {}, kTwoNodes.memory_domains);
  ASSERT_TRUE(ranks.all_wrote("READY", Deadline::after(std::chrono::seconds(60))));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ranks.signal(victim, SIGKILL);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == victim) continue;
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    expect_error(result, "peer_lost", std::to_string(victim));
    EXPECT_LT(waited(result.output), 30) << "a death must not wait for the deadline of 60 s";
  }
}

INSTANTIATE_TEST_SUITE_P(TwoNodes, Death, testing::Combine(testing::Range(0, 4), testing::Values("100", "8000000")),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) + "_" + std::get<1>(each.param);
                         });

class Difference : public testing::TestWithParam<std::tuple<const char*, Over>> {};

TEST_P(Difference, IsReportedLongBeforeTheDeadlineByWhoeverWaits) {
  const auto [what, over] = GetParam();
  RankProcesses ranks(kWorld, {built_program("rank_program"), "differ", what, "2", "100"}, {}, over.memory_domains);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(90)));
  std::size_t reported = 0;
  for (const RankResult& result : results) {
    // a broadcast does not make everyone wait: ranks that have passed on root's data are done
    if (std::string(what) == "root" && result.exit_code == 0) continue;
    EXPECT_EQ(result.exit_code, 3) << result.output;
    EXPECT_NE(result.output.find("code=mismatch"), std::string::npos) << result.output;
    // where ranks go on after a broadcast, not all calls are known
    const bool lists = std::string(what) != "root";
    EXPECT_NE(result.output.find(lists ? "rank 2: " : "rank 2"), std::string::npos) << result.output;
    EXPECT_LT(waited(result.output), 60) << "a difference must not wait for the deadline of 100 s";
    ++reported;
  }
  EXPECT_GE(reported, 1U);
}

TEST_P(Difference, IsReportedByEveryRankWhenArgumentsAreCompared) {
  const auto [what, over] = GetParam();
  RankProcesses ranks(kWorld, {built_program("rank_program"), "differ", what, "2", "100"}, {"DDP_CHECK_COLLECTIVES=1"},
                      over.memory_domains);
  for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(90)))) {
    expect_error(result, "mismatch", "0,1,2,3");
    EXPECT_LT(waited(result.output), 60) << "a difference must not wait for the deadline of 100 s";
  }
}

INSTANTIATE_TEST_SUITE_P(Arguments, Difference,
                         testing::Combine(testing::Values("size", "empty", "dtype", "op", "root", "kind"),
                                          testing::Values(kSharedMemory, kTwoNodes)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param)) + "_" + std::get<1>(each.param).name;
                         });

INSTANTIATE_TEST_SUITE_P(Over, Transfer, testing::Values(kSharedMemory, kTcp),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(Transfer, OfAnotherSizeIsRefusedByTheReceiver) {
  RankProcesses ranks(2, {built_program("rank_program"), "differ", "transfer", "0", "4"}, {},
                      GetParam().memory_domains);
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)));
  EXPECT_EQ(results[1].exit_code, 3) << results[1].output;
  EXPECT_NE(results[1].output.find("code=mismatch"), std::string::npos) << results[1].output;
}

/// Whoever waits for others, in this call or the next: all report the one that does not fit, with both ranks and sizes.
TEST(Exchange, ThatDoesNotFitIsNamedByAll) {
  struct Case {
    const char* what;
    const char* code;
    const char* ranks;
    const char* text;
  };
  for (const Case& each :
       {Case{"message", "mismatch", "0,1", "recv of float32 x 4 from 0, tag 3: rank 0 sent float32 x 8 to rank 1"},
        Case{"rows", "mismatch", "0,1",
             "all_to_all: recv of float32 x 4 from 0: rank 0 sent 3 rows (float32 x 6) to rank 1, which expects 2"},
        Case{"nothing", "timeout", "0",
             "all_to_all: recv of float32 x 4 from 0: rank 0 is alive but sent rank 1 nothing"}}) {
    std::list<RankProcesses> jobs;
    for (const Over& over : {kSharedMemory, kTwoNodes, kTcp}) {
      jobs.emplace_back(kWorld,
                        std::vector<std::string>{built_program("rank_program"), "exchange", each.what, "0", "4"},
                        std::vector<std::string>{}, over.memory_domains);
    }
    for (RankProcesses& ranks : jobs) {
      for (const RankResult& result : ranks.wait(Deadline::after(std::chrono::seconds(60)))) {
        expect_error(result, each.code, each.ranks);
        EXPECT_NE(result.output.find(each.text), std::string::npos) << result.output;
      }
    }
  }
}

TEST(AbsentFromInit, IsNamedByTheOthers) {
  // rank 1 stops itself before it can connect
  const char* const kScript = "[ \"$PMI_RANK\" != 1 ] || kill -STOP $$; exec \"$0\" world";
  RankProcesses ranks(3, {"/bin/sh", "-c", kScript, built_program("rank_program")}, {"DDP_INIT_TIMEOUT=6"});
  const auto results = ranks.wait(Deadline::after(std::chrono::seconds(60)), 1);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(results[rank].exit_code, 4);
    EXPECT_NE(results[rank].output.find("code=timeout ranks=[1]"), std::string::npos) << results[rank].output;
  }
}

}  // namespace
}  // namespace ddp::test
