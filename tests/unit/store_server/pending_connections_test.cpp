// Who has to go first, and when: strangers before the job's own clients, the oldest before the others.
#include "store_server/pending_connections.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ddp::store_server {
namespace {

const Deadline kPast = Deadline::after(std::chrono::seconds(-1));
const Deadline kSoon = Deadline::after(std::chrono::hours(1));
const Deadline kLater = Deadline::after(std::chrono::hours(2));

TEST(PendingConnections, NobodyHasToGoWhereNobodyIs) {
  PendingConnections pending;
  pending.remove(7);
  pending.admit(7);
  EXPECT_FALSE(pending.first_to_go());
  EXPECT_FALSE(pending.late());
  EXPECT_FALSE(pending.next_deadline());
  EXPECT_EQ(pending.num_strangers(), 0U);
}

TEST(PendingConnections, StrangersGoFirstAndTheOldestOfThem) {
  PendingConnections pending;
  pending.add(1, 11, kSoon, false);
  pending.add(2, 12, kSoon, true);
  pending.add(3, 13, kLater, true);
  EXPECT_EQ(pending.strangers(), (std::vector<int>{12, 13}));
  EXPECT_EQ(pending.first_to_go(), 12);
  pending.remove(2);
  EXPECT_EQ(pending.first_to_go(), 13);
  EXPECT_EQ(pending.num_strangers(), 1U);
  pending.remove(3);
  EXPECT_EQ(pending.first_to_go(), 11);
}

TEST(PendingConnections, WhoIsAdmittedIsNoStrangerAndKeepsItsDeadline) {
  PendingConnections pending;
  pending.add(1, 11, kSoon, true);
  pending.add(2, 12, kLater, true);
  pending.admit(1);
  EXPECT_EQ(pending.strangers(), std::vector<int>{12});
  EXPECT_EQ(pending.first_to_go(), 12);
  ASSERT_TRUE(pending.next_deadline());
  EXPECT_EQ(pending.next_deadline()->when(), kSoon.when());
}

TEST(PendingConnections, TheLateOnesAreFoundInBothGroups) {
  PendingConnections pending;
  pending.add(1, 11, kPast, false);
  pending.add(2, 12, kPast, true);
  pending.add(3, 13, kSoon, false);
  pending.add(4, 14, kLater, true);
  EXPECT_EQ(pending.late(), 11);
  pending.remove(1);
  EXPECT_EQ(pending.late(), 12);
  EXPECT_EQ(pending.next_deadline()->when(), kPast.when());
  pending.remove(2);
  EXPECT_FALSE(pending.late());
  EXPECT_EQ(pending.next_deadline()->when(), kSoon.when());
}

}  // namespace
}  // namespace ddp::store_server
