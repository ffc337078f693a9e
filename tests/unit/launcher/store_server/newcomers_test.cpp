// Who has to go first, and when: strangers before the job's own clients, the oldest before the others.
#include "store_server/newcomers.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ddp::launcher::store_server {
namespace {

const Deadline kPast = Deadline::after(std::chrono::seconds(-1));
const Deadline kSoon = Deadline::after(std::chrono::hours(1));
const Deadline kLater = Deadline::after(std::chrono::hours(2));

TEST(Newcomers, NobodyHasToGoWhereNobodyIs) {
  Newcomers newcomers;
  newcomers.remove(7);
  newcomers.admit(7);
  EXPECT_FALSE(newcomers.first_to_go());
  EXPECT_FALSE(newcomers.late());
  EXPECT_FALSE(newcomers.next_deadline());
  EXPECT_EQ(newcomers.num_strangers(), 0U);
}

TEST(Newcomers, StrangersGoFirstAndTheOldestOfThem) {
  Newcomers newcomers;
  newcomers.add(1, 11, kSoon, false);
  newcomers.add(2, 12, kSoon, true);
  newcomers.add(3, 13, kLater, true);
  EXPECT_EQ(newcomers.strangers(), (std::vector<int>{12, 13}));
  EXPECT_EQ(newcomers.first_to_go(), 12);
  newcomers.remove(2);
  EXPECT_EQ(newcomers.first_to_go(), 13);
  EXPECT_EQ(newcomers.num_strangers(), 1U);
  newcomers.remove(3);
  EXPECT_EQ(newcomers.first_to_go(), 11);
}

TEST(Newcomers, WhoIsAdmittedIsNoStrangerAndKeepsItsDeadline) {
  Newcomers newcomers;
  newcomers.add(1, 11, kSoon, true);
  newcomers.add(2, 12, kLater, true);
  newcomers.admit(1);
  EXPECT_EQ(newcomers.strangers(), std::vector<int>{12});
  EXPECT_EQ(newcomers.first_to_go(), 12);
  ASSERT_TRUE(newcomers.next_deadline());
  EXPECT_EQ(newcomers.next_deadline()->when(), kSoon.when());
}

TEST(Newcomers, TheLateOnesAreFoundInBothGroups) {
  Newcomers newcomers;
  newcomers.add(1, 11, kPast, false);
  newcomers.add(2, 12, kPast, true);
  newcomers.add(3, 13, kSoon, false);
  newcomers.add(4, 14, kLater, true);
  EXPECT_EQ(newcomers.late(), 11);
  newcomers.remove(1);
  EXPECT_EQ(newcomers.late(), 12);
  EXPECT_EQ(newcomers.next_deadline()->when(), kPast.when());
  newcomers.remove(2);
  EXPECT_FALSE(newcomers.late());
  EXPECT_EQ(newcomers.next_deadline()->when(), kSoon.when());
}

}  // namespace
}  // namespace ddp::launcher::store_server
