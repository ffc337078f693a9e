// What is evicted first, and what has expired: unadmitted connections before the job's own, of the source with the most
// the oldest first.
#include "store_server/pending_connections.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace ddp::store_server {
namespace {

const Deadline kPast = Deadline::after(std::chrono::seconds(-1));
const Deadline kSoon = Deadline::after(std::chrono::hours(1));
const Deadline kLater = Deadline::after(std::chrono::hours(2));

PendingConnection connection(int fd, Deadline deadline, std::uint8_t source = 0) {
  return {.fd = fd, .deadline = deadline, .source = {{source}}};
}

TEST(PendingConnections, Empty) {
  PendingConnections pending;
  pending.remove(7);
  pending.admit(7);
  EXPECT_FALSE(pending.eviction_candidate());
  EXPECT_FALSE(pending.expired());
  EXPECT_FALSE(pending.next_deadline());
  EXPECT_EQ(pending.num_unadmitted(), 0U);
}

TEST(PendingConnections, TheOldestUnadmittedIsEvictedFirst) {
  PendingConnections pending;
  pending.add(1, connection(11, kSoon), true);
  pending.add(2, connection(12, kSoon), false);
  pending.add(3, connection(13, kLater), false);
  EXPECT_EQ(pending.num_unadmitted(), 2U);
  EXPECT_EQ(pending.eviction_candidate(), 12);
  pending.remove(2);
  EXPECT_EQ(pending.eviction_candidate(), 13);
  EXPECT_EQ(pending.num_unadmitted(), 1U);
  pending.remove(3);
  EXPECT_EQ(pending.eviction_candidate(), 11);
}

TEST(PendingConnections, ASourceCrowdsOutOnlyItself) {
  PendingConnections pending;
  std::uint64_t serial = 0;
  const auto add = [&](int fd, std::uint8_t source) { pending.add(++serial, connection(fd, kSoon, source), false); };
  add(11, 1);
  add(12, 1);
  add(13, 2);
  add(14, 2);
  add(15, 2);
  EXPECT_EQ(pending.eviction_candidate(), 13);
  pending.remove(3);
  EXPECT_EQ(pending.eviction_candidate(), 11);  // as many: the source that came first
  pending.admit(1);
  EXPECT_EQ(pending.eviction_candidate(), 14);  // those that are admitted do not count
  pending.remove(4);
  pending.remove(5);
  EXPECT_EQ(pending.eviction_candidate(), 12);
}

TEST(PendingConnections, AdmissionKeepsTheDeadline) {
  PendingConnections pending;
  pending.add(1, connection(11, kSoon), false);
  pending.add(2, connection(12, kLater), false);
  pending.admit(1);
  EXPECT_EQ(pending.num_unadmitted(), 1U);
  EXPECT_EQ(pending.eviction_candidate(), 12);
  ASSERT_TRUE(pending.next_deadline());
  EXPECT_EQ(pending.next_deadline()->when(), kSoon.when());
}

TEST(PendingConnections, ExpiredOnesAreFoundInBothGroups) {
  PendingConnections pending;
  pending.add(1, connection(11, kPast), true);
  pending.add(2, connection(12, kPast), false);
  pending.add(3, connection(13, kSoon), true);
  pending.add(4, connection(14, kLater), false);
  EXPECT_EQ(pending.expired(), 11);
  pending.remove(1);
  EXPECT_EQ(pending.expired(), 12);
  EXPECT_EQ(pending.next_deadline()->when(), kPast.when());
  pending.remove(2);
  EXPECT_FALSE(pending.expired());
  EXPECT_EQ(pending.next_deadline()->when(), kSoon.when());
}

}  // namespace
}  // namespace ddp::store_server
