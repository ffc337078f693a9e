// Whoever opens the most connections crowds out only itself.
#include "control/pending_connections.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>
#include <vector>

namespace ddp::launcher::control {
namespace {

sockaddr_storage address_of(const std::string& text) {
  sockaddr_storage address{};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
  if (::inet_pton(AF_INET, text.c_str(), &ipv4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else {
    EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &ipv6.sin6_addr), 1) << text;
    address.ss_family = AF_INET6;
  }
  return address;
}

std::string source(const std::string& text) { return source_of(address_of(text)); }

TEST(Source, IsAnAddressOrANetworkOfSixtyFourBits) {
  EXPECT_EQ(source("10.0.0.1"), source("::ffff:10.0.0.1"));
  EXPECT_NE(source("10.0.0.1"), source("10.0.0.2"));
  EXPECT_EQ(source("2001:db8::1"), source("2001:db8::ffff:1"));
  EXPECT_NE(source("2001:db8::1"), source("2001:db8:0:1::1"));
}

TEST(Source, OfThisHostIsOne) {
  for (const char* text : {"127.1.2.3", "::1", "::ffff:127.0.0.9"}) EXPECT_EQ(source(text), source("127.0.0.1"));
}

TEST(PendingConnections, TheOldestOfTheMostNumerousSourceGoes) {
  PendingConnections pending;
  std::uint64_t number = 0;
  const auto add = [&](const std::string& from) {
    return pending.add({.socket = {}, .peer = {}, .source = source(from), .since = {}, .number = number++});
  };
  add("10.0.0.1");
  add("10.0.0.2");
  const auto crowding = add("10.0.0.3");
  add("10.0.0.3");
  EXPECT_EQ(pending.oldest()->number, 0U);
  EXPECT_EQ(pending.most_crowding(), crowding);
  EXPECT_EQ(pending.share_of(crowding), 2U);
  pending.erase(crowding);
  EXPECT_EQ(pending.find(2), std::nullopt);
  EXPECT_TRUE(pending.find(3));
  add("10.0.0.1");
  EXPECT_EQ(pending.most_crowding()->number, 0U);
  std::vector<std::uint64_t> left;
  pending.clear([&](const PendingConnection& each) { left.push_back(each.number); });
  EXPECT_EQ(left, (std::vector<std::uint64_t>{0, 1, 3, 4}));
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace ddp::launcher::control
