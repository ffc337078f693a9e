// Jobs that span nodes, through ddprun's PMIx server: one process a node, real PMIx clients, and answers that come
// late, wrong or never.
#include <pmix_common.h>

#include "support/checkout.hpp"
#include "support/pmix_nodes.hpp"

namespace ddp::test {
namespace {

using launcher::NodeShape;

Deadline soon() { return Deadline::after(std::chrono::seconds(90)); }

std::string names_of(const std::vector<NodeShape>& nodes) {
  std::string names;
  for (const NodeShape& node : nodes) names += (names.empty() ? "" : ",") + node.host;
  return names;
}

int count_ranks(const std::vector<NodeShape>& nodes) {
  int count = 0;
  for (const NodeShape& node : nodes) count += node.num_ranks;
  return count;
}

const std::vector<NodeShape> kTwoByTwo{{.host = "n0", .num_ranks = 2}, {.host = "n1", .num_ranks = 2}};

/// Runs the job to its good end.
void expect_success(PmixNodes& job, int num_ranks) {
  EXPECT_TRUE(job.run_until([&] { return job.all_ended() || !job.failures().empty(); }, soon()));
  for (int rank = 0; rank < num_ranks; ++rank) {
    EXPECT_EQ(job.rank(rank).exit_code, 0)
        << "rank " << rank << ", signal " << job.rank(rank).signal << ": " << job.rank(rank).output;
  }
  EXPECT_EQ(job.take_down(soon()), "");
}

/// What libpmix needs, generously, to see that a client has gone or to take in a message.
constexpr std::chrono::milliseconds kLibraryNotices{300};

void run_for(PmixNodes& job, std::chrono::milliseconds time) {
  job.run_until([] { return false; }, Deadline::after(time));
}

/// As the launcher does when the job has failed.
void end_by_force(PmixNodes& job) {
  job.end_attempt(PMIX_ERR_JOB_ABORTED);
  for (int rank = 0; rank < job.num_ranks(); ++rank) job.signal(rank, SIGKILL);
  ASSERT_TRUE(job.run_until([&] { return job.all_ended(); }, soon()));
}

void expect_statuses(const PmixNodes& job, const std::vector<int>& ranks, int status) {
  for (const int rank : ranks) {
    EXPECT_THAT(job.rank(rank).output, HasSubstr(fmt::format("FENCE rank={} status={}\n", rank, status)));
  }
}

class Layout : public testing::TestWithParam<std::vector<NodeShape>> {};

TEST_P(Layout, EveryRankKnowsTheJobAndGetsAllValues) {
  PmixNodes job(GetParam(), names_of(GetParam()), {built_program("pmix_exchange"), "exchange"});
  expect_success(job, count_ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Jobs, Layout,
                         testing::Values(kTwoByTwo,
                                         std::vector<NodeShape>{{.host = "n0", .num_ranks = 1},
                                                                {.host = "n1", .num_ranks = 3},
                                                                {.host = "n2", .num_ranks = 2}},
                                         std::vector<NodeShape>{{.host = "gpu-07.example.org", .num_ranks = 2},
                                                                {.host = "cpu1-x", .num_ranks = 1}}),
                         [](const auto& each) { return fmt::format("Of{}Ranks", count_ranks(each.param)); });

TEST(PmixServer, CompletesFencesOfOneNodeByItself) {
  const std::vector<NodeShape> node{{.host = "n0", .num_ranks = 3}};
  PmixNodes job(node, "n0", {built_program("pmix_exchange"), "exchange"});
  expect_success(job, 3);
  EXPECT_EQ(job.fences(), 0U);
  EXPECT_EQ(job.calls(), 0U);
}

TEST(PmixServer, AsksOnceForEachFenceOfSeveralNodes) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "exchange"});
  expect_success(job, 4);
  // 4 with data, 2 empty ones and that of two ranks, on two nodes each; not the one of a single node
  EXPECT_EQ(job.fences(), 14U);
}

TEST(PmixServer, TwoAgentsOnOneHostAreTwoNodes) {
  const std::vector<NodeShape> nodes{{.host = "n0", .num_ranks = 2}, {.host = "n0", .num_ranks = 2}};
  PmixNodes job(nodes, "n0,n0-1", {built_program("pmix_exchange"), "exchange"});
  expect_success(job, 4);
}

TEST(DirectModex, ValuesAreGotWithoutAFenceAlsoBeforeTheyArePut) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "direct"});
  bool asked_early = false;
  job.observe = [&](const NodeMessage& message, int) {
    if (message.kind == NodeMessage::Kind::call && message.rank == 3) {
      asked_early = true;
      job.signal(3, SIGUSR1);  // now it may put
    }
  };
  expect_success(job, 4);
  EXPECT_TRUE(asked_early);
}

TEST(DirectModex, AKeyThatNobodyPutIsNotFound) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "missing"});
  expect_success(job, 4);
  EXPECT_THAT(job.rank(0).output, HasSubstr(fmt::format("status={}\n", PMIX_ERR_NOT_FOUND)));
}

TEST(DirectModex, TheAskersTimeLimitHolds) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "missing", "2"});
  job.hold_calls = true;  // the other node never answers
  expect_success(job, 4);
  EXPECT_THAT(job.rank(0).output, HasSubstr(fmt::format("status={}\n", PMIX_ERR_TIMEOUT)));
}

TEST(DirectModex, AnErrorReachesTheAsker) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "missing"});
  job.hold_calls = true;
  job.observe = [&](const NodeMessage& message, int node) {
    if (message.kind != NodeMessage::Kind::call) return;
    job.send(node, {.kind = NodeMessage::Kind::answer, .id = message.id, .rank = 0, .status = PMIX_ERR_UNREACH});
  };
  expect_success(job, 4);
  EXPECT_THAT(job.rank(0).output, HasSubstr(fmt::format("status={}\n", PMIX_ERR_UNREACH)));
}

TEST(DirectModex, AnAnswerForADeadAskerDoesNoHarm) {
  for (const int status : {PMIX_SUCCESS, PMIX_ERR_UNREACH}) {
    PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "missing"});
    job.hold_calls = true;
    std::uint64_t asked = 0;
    job.observe = [&](const NodeMessage& message, int) {
      if (message.kind == NodeMessage::Kind::call) asked = message.id;
    };
    ASSERT_TRUE(job.run_until([&] { return asked != 0; }, soon()));
    job.signal(0, SIGKILL);
    ASSERT_TRUE(job.run_until([&] { return job.rank(0).ended; }, soon()));
    run_for(job, kLibraryNotices);
    const NodeMessage answer{.kind = NodeMessage::Kind::answer, .id = asked, .rank = 0, .status = status};
    job.send(0, answer);
    job.send(0, answer);  // and once more: it is known no longer
    end_by_force(job);
    EXPECT_EQ(job.take_down(soon()), "");
  }
}

TEST(DirectModex, QuestionsThatAreNeverAnsweredEndWithTheAttempt) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "direct"});  // and the last rank never puts
  ASSERT_TRUE(job.run_until([&] { return job.calls() > 0; }, soon()));
  job.send(1, {.kind = NodeMessage::Kind::fetch, .id = 999, .rank = 77, .status = 0});
  run_for(job, kLibraryNotices);
  job.end_attempt(PMIX_ERR_JOB_ABORTED);
  ASSERT_TRUE(job.run_until([&] { return job.rank(0).ended && job.rank(1).ended; }, soon()));
  EXPECT_THAT(job.rank(0).output, HasSubstr(fmt::format("({})", PMIX_ERR_JOB_ABORTED)));
  end_by_force(job);
  EXPECT_EQ(job.take_down(soon()), "");
}

TEST(Fence, AnErrorReachesAllRanks) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "fence"});
  job.fence_status = PMIX_ERR_UNREACH;
  job.signal(2, SIGUSR1);
  expect_success(job, 4);
  expect_statuses(job, {0, 1, 2, 3}, PMIX_ERR_UNREACH);
}

TEST(Fence, TheEndOfTheAttemptEndsItAndLateAnswersAreIgnored) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "fence"});
  job.hold_fences = true;
  job.signal(2, SIGUSR1);
  ASSERT_TRUE(job.run_until([&] { return job.fences() == 2; }, soon()));
  job.end_attempt(PMIX_ERR_JOB_ABORTED);
  job.release_fences();
  expect_success(job, 4);
  expect_statuses(job, {0, 1, 2, 3}, PMIX_ERR_JOB_ABORTED);
}

TEST(Fence, ARankThatIsKilledAfterItsNodeEnteredDoesNotHarmTheOthers) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "fence"});
  job.hold_fences = true;
  job.signal(2, SIGUSR1);
  ASSERT_TRUE(job.run_until([&] { return job.fences() == 2; }, soon()));
  job.signal(3, SIGKILL);
  ASSERT_TRUE(job.run_until([&] { return job.rank(3).ended; }, soon()));
  run_for(job, kLibraryNotices);
  job.release_fences();
  ASSERT_TRUE(job.run_until([&] { return job.all_ended(); }, soon()));
  EXPECT_EQ(job.rank(3).signal, SIGKILL);
  expect_statuses(job, {0, 1}, PMIX_SUCCESS);
  EXPECT_THAT(job.rank(2).output, HasSubstr("FENCE rank=2 status="));
  EXPECT_EQ(job.take_down(soon()), "");
}

TEST(Fence, ARankThatIsKilledBeforeItsNodeEnteredCannotHoldTheOthersForEver) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("pmix_exchange"), "fence"});
  ASSERT_TRUE(job.run_until([&] { return job.fences() == 1; }, soon()));  // node 0's
  run_for(job, kLibraryNotices);                                          // rank 3 is in it, too
  job.signal(3, SIGKILL);
  ASSERT_TRUE(job.run_until([&] { return job.rank(3).ended; }, soon()));
  run_for(job, kLibraryNotices);
  job.signal(2, SIGUSR1);
  run_for(job, kLibraryNotices);
  job.end_attempt(PMIX_ERR_JOB_ABORTED);
  ASSERT_TRUE(job.run_until([&] { return job.rank(0).ended && job.rank(1).ended; }, soon()));
  // libpmix 4.2 counts the dead rank as arrived; others may give an error
  for (const int rank : {0, 1}) {
    EXPECT_THAT(job.rank(rank).output, HasSubstr(fmt::format("FENCE rank={} status=", rank)));
  }
  end_by_force(job);
  EXPECT_EQ(job.take_down(soon()), "");
}

TEST(Libddp, WorldIsThatOfTheLauncher) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("rank_program"), "world"},
                {"DDP_SOCKET_IFNAME=lo", "DDP_INIT_TIMEOUT=60"});
  expect_success(job, 4);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string& output = job.rank(rank).output;
    EXPECT_THAT(output, HasSubstr(fmt::format("\"rank\": {}, \"world_size\": 4, \"local_rank\": {}, "
                                              "\"local_world_size\": 2, \"node_rank\": {}, \"num_nodes\": 2",
                                              rank, rank % 2, rank / 2)));
    EXPECT_THAT(output, HasSubstr("\"node_of\": [0,0,1,1], \"local_rank_of\": [0,1,0,1]"));
    EXPECT_THAT(output, HasSubstr("\"source\": \"pmix\""));
  }
  EXPECT_GT(job.fences(), 0U);
}

TEST(Libddp, StoreCarriesValuesOfManySizes) {
  const std::vector<NodeShape> nodes{{.host = "n0", .num_ranks = 1}, {.host = "n1", .num_ranks = 2}};
  PmixNodes job(nodes, "n0,n1", {built_program("rank_program"), "kvs"},
                {"DDP_SOCKET_IFNAME=lo", "DDP_INIT_TIMEOUT=60"});
  expect_success(job, 3);
}

/// Which must not wait for what that rank never puts.
TEST(Libddp, ARankThatMakesFewerStoresIsNamed) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("rank_program"), "fewer-stores"},
                {"DDP_SOCKET_IFNAME=lo", "DDP_INIT_TIMEOUT=600"});
  expect_success(job, 4);
}

/// Node 0 is in the fence; at the deadline nodes 0 and 1 ask who is not, and nodes 1 and 2 are asked.
TEST(Libddp, AbsentRanksAreNamedAndEachNodeAsksOnce) {
  const std::vector<NodeShape> nodes{
      {.host = "n0", .num_ranks = 2}, {.host = "n1", .num_ranks = 2}, {.host = "n2", .num_ranks = 2}};
  PmixNodes job(nodes, "n0,n1,n2", {built_program("rank_program"), "world"},
                {"DDP_SOCKET_IFNAME=lo", "DDP_INIT_TIMEOUT=6"});
  for (const int rank : {2, 4, 5}) job.signal(rank, SIGSTOP);  // before it can connect
  ASSERT_TRUE(job.run_until([&] { return job.rank(0).ended && job.rank(1).ended && job.rank(3).ended; }, soon()));
  for (const int rank : {0, 1, 3}) EXPECT_THAT(job.rank(rank).output, HasSubstr("code=timeout ranks=[2,4,5]"));
  EXPECT_EQ(job.calls(), 0U);  // before: 4 of each of nodes 0 and 1
  // a question and an answer each; again where a rank comes to its deadline a second later than another
  EXPECT_GE(job.absences(), 8U);
  EXPECT_LE(job.absences(), 24U);
  end_by_force(job);
  EXPECT_EQ(job.take_down(soon()), "");
}

TEST(Libddp, ARankThatIsAbsentFromALaterFenceIsNamed) {
  PmixNodes job(kTwoByTwo, "n0,n1", {built_program("rank_program"), "loop", "60", "8"},
                {"DDP_SOCKET_IFNAME=lo", "DDP_INIT_TIMEOUT=6"});
  job.observe = [&](const NodeMessage& message, int) {
    const bool completes_the_first = message.kind == NodeMessage::Kind::fence && job.fences() == 1;
    if (completes_the_first) job.signal(2, SIGSTOP);  // comes before the answer
  };
  ASSERT_TRUE(job.run_until([&] { return job.rank(0).ended && job.rank(1).ended && job.rank(3).ended; }, soon()));
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(job.rank(rank).output, AllOf(HasSubstr("fence 2 of 4 ranks"), HasSubstr("code=timeout ranks=[2]")));
  }
  EXPECT_EQ(job.calls(), 0U);
  end_by_force(job);
  EXPECT_EQ(job.take_down(soon()), "");
}

}  // namespace
}  // namespace ddp::test
