// The source of the most connections crowds out only itself.
#include "control/pending_connections.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace ddp::launcher::control {
namespace {

TEST(PendingConnections, TheOldestOfTheMostNumerousSourceGoes) {
  PendingConnections pending;
  std::uint64_t number = 0;
  const auto add = [&](std::uint8_t from) { return pending.add({.source = {{from}}, .number = number++}); };
  add(1);
  add(2);
  const auto crowding = add(3);
  add(3);
  EXPECT_EQ(pending.oldest()->number, 0U);
  EXPECT_EQ(pending.most_crowding(), crowding);
  EXPECT_EQ(pending.share_of(crowding), 2U);
  pending.erase(crowding);
  EXPECT_EQ(pending.find(2), std::nullopt);
  EXPECT_TRUE(pending.find(3));
  add(1);
  EXPECT_EQ(pending.most_crowding()->number, 0U);
  std::vector<std::uint64_t> left;
  pending.clear([&](const PendingConnection& each) { left.push_back(each.number); });
  EXPECT_EQ(left, (std::vector<std::uint64_t>{0, 1, 3, 4}));
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace ddp::launcher::control
