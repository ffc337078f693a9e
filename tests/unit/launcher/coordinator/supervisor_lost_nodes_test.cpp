// Nodes that are lost: whether they end the job, and what becomes of their ranks.
#include "supervisor_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST_F(SupervisorTest, ALostNodeEndsTheJobAtOnceAndItsRanksAreNoFailures) {
  EXPECT_THAT(supervisor_.node_failed(lost(0, 2, seconds(1)), 0, at(seconds(1))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_EQ(supervisor_.next_deadline()->when(), at(seconds(31)).steady);
  EXPECT_FALSE(supervisor_.done());
  end(0, died(SIGKILL), seconds(1));  // too late to count
  end(2, died(SIGTERM), seconds(2));
  EXPECT_TRUE(supervisor_.done());
  const JobOutcome& outcome = supervisor_.outcome();
  EXPECT_EQ(outcome.nodes.size(), 1U);
  EXPECT_THAT(outcome.failures, IsEmpty());
  EXPECT_EQ(outcome.ended_on_request, 1);
  EXPECT_EQ(outcome.killed, 0);
  EXPECT_EQ(outcome.exit_status(), 9);
  EXPECT_TRUE(outcome.failed_by_itself());
}

TEST_F(SupervisorTest, ANodeLostWithinTheGraceTimeCutsItAndTheRankStaysTheCause) {
  end(2, exited(85), seconds(0));
  EXPECT_THAT(supervisor_.node_failed(lost(0, 2, seconds(1)), 0, at(seconds(1))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_TRUE(supervisor_.done());
  EXPECT_EQ(supervisor_.outcome().nodes.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().exit_status(), 85);
}

TEST_F(SupervisorTest, ASecondNodeLostDuringTheShutdownIsListedAndGetsNoNewLimit) {
  supervisor_.node_failed(lost(0, 2, seconds(1)), 0, at(seconds(1)));
  EXPECT_THAT(supervisor_.node_failed(lost(1, 1, seconds(5)), 2, at(seconds(5))), IsEmpty());
  EXPECT_EQ(supervisor_.outcome().nodes.size(), 2U);
  EXPECT_TRUE(supervisor_.done());
}

TEST_F(SupervisorTest, ANodeWhoseRanksHaveEndedIsStillNeeded) {
  end(2, exited(0), seconds(0));
  EXPECT_THAT(supervisor_.node_failed(lost(1, 1, seconds(1)), 2, at(seconds(1))),
              ElementsAre(to_groups(SIGTERM), to_groups(SIGCONT)));
  EXPECT_FALSE(supervisor_.done());
}

TEST_F(SupervisorTest, ANodeLostAfterTheUsersSignalIsNoCause) {
  supervisor_.signal_received(SIGTERM, at(seconds(0)));
  EXPECT_THAT(supervisor_.node_failed(lost(0, 2, seconds(1)), 0, at(seconds(1))), IsEmpty());
  EXPECT_THAT(supervisor_.outcome().nodes, IsEmpty());
  EXPECT_EQ(supervisor_.outcome().lost, 2);
  end(2, died(SIGTERM), seconds(1));
  EXPECT_TRUE(supervisor_.done());
  EXPECT_EQ(supervisor_.outcome().exit_status(), 128 + SIGTERM);
}

TEST_F(SupervisorTest, LostRanksAreNotUnkillable) {
  supervisor_.node_failed(lost(0, 2, seconds(0)), 0, at(seconds(0)));
  supervisor_.time_passed(at(seconds(30)));
  supervisor_.time_passed(at(seconds(40)));
  ASSERT_EQ(supervisor_.outcome().unkillable.size(), 1U);
  EXPECT_EQ(supervisor_.outcome().unkillable[0].rank, 2);
}

TEST_F(SupervisorTest, ANodeLostAfterTheLastEndIsNothing) {
  for (int rank = 0; rank < 3; ++rank) end(rank, exited(0), seconds(0));
  EXPECT_THAT(supervisor_.node_failed(lost(0, 2, seconds(1)), 0, at(seconds(1))), IsEmpty());
  EXPECT_TRUE(supervisor_.outcome().success());
}

}  // namespace
}  // namespace ddp::launcher::test
