// Which witnesses are asked, and when nobody is left to answer.
#include "store_server/witness_directory.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddp::store_server {
namespace {

using Descriptors = std::vector<int>;

PeerAddress address(const std::string& text) { return *PeerAddress::parse(text); }

Statement host(std::uint8_t name, const std::vector<std::string>& addresses) {
  Statement statement;
  statement.host[0] = name;
  for (const std::string& text : addresses) statement.addresses.push_back(address(text));
  return statement;
}

TEST(WitnessDirectory, WitnessesAreFoundByEachAddress) {
  WitnessDirectory directory;
  directory.add(5, host(1, {"10.0.0.1", "172.17.0.1", "10.0.0.1"}));
  directory.add(6, host(2, {"10.0.0.2", "172.17.0.1"}));
  EXPECT_EQ(directory.at(address("10.0.0.1")), Descriptors{5});
  EXPECT_EQ(directory.at(address("172.17.0.1")), (Descriptors{5, 6}));
  EXPECT_EQ(directory.at(address("10.0.0.3")), Descriptors{});
  EXPECT_TRUE(directory.has_host(host(1, {})));
  EXPECT_FALSE(directory.has_host(host(3, {})));
  directory.remove(5);
  EXPECT_FALSE(directory.has_host(host(1, {})));
  EXPECT_EQ(directory.at(address("172.17.0.1")), Descriptors{6});
}

TEST(WitnessDirectory, OnlyWhoWasAskedAnswersAndOnce) {
  WitnessDirectory directory;
  directory.asked(100, 9, {5, 6});
  EXPECT_EQ(directory.answered(7, 100), std::nullopt);
  EXPECT_EQ(directory.answered(5, 101), std::nullopt);
  EXPECT_EQ(directory.answered(5, 100), 9);
  EXPECT_FALSE(directory.all_answered(100));
  EXPECT_EQ(directory.answered(5, 100), std::nullopt);
  EXPECT_EQ(directory.answered(6, 100), 9);
  EXPECT_TRUE(directory.all_answered(100));
  directory.asked(102, 9, {5});
  directory.settled(102);
  EXPECT_EQ(directory.answered(5, 102), std::nullopt);
}

TEST(WitnessDirectory, AWitnessThatIsGoneLeavesItsQuestionsToOthers) {
  WitnessDirectory directory;
  directory.asked(100, 9, {5, 6});
  directory.asked(101, 10, {5});
  EXPECT_EQ(directory.remove(5), Descriptors{10});
  EXPECT_EQ(directory.answered(6, 100), 9);
}

}  // namespace
}  // namespace ddp::store_server
