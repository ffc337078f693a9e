// Addresses compare by what they mean.
#include "store_server/peer_address.hpp"

namespace ddp::store_server {
namespace {

PeerAddress read_address(const std::string& text) {
  const auto parsed = PeerAddress::parse(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(PeerAddress{});
}

TEST(PeerAddress, FormsOfOneAddressAreEqual) {
  EXPECT_EQ(read_address("10.1.2.3"), read_address("::ffff:10.1.2.3"));
  EXPECT_EQ(read_address("2001:db8::1"), read_address("2001:0DB8:0:0::0001"));
  EXPECT_EQ(read_address("fe80::1%eth0"), read_address("fe80::1"));
  EXPECT_NE(read_address("10.1.2.3"), read_address("10.1.2.4"));
  EXPECT_NE(read_address("10.1.2.3"), read_address("::10.1.2.3"));
  EXPECT_EQ(read_address("::ffff:10.1.2.3").text(), "10.1.2.3");
  EXPECT_EQ(read_address("2001:db8::1").text(), "2001:db8::1");
}

TEST(PeerAddress, WhatIsNoAddressIsNotTaken) {
  for (const std::string text :
       {"", "node1", "10.1.2", "10.1.2.3.4", "10.1.2.256", ":::", "10.1.2.3:80", "[::1]", "%"}) {
    EXPECT_FALSE(PeerAddress::parse(text)) << text;
  }
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_FALSE(PeerAddress::of(local));
}

TEST(PeerAddress, Loopback) {
  for (const std::string text : {"127.0.0.1", "127.9.8.7", "::ffff:127.0.0.1", "::1"}) {
    EXPECT_TRUE(read_address(text).is_loopback()) << text;
  }
  for (const std::string text : {"128.0.0.1", "::", "::2", "10.0.0.127", "::127.0.0.1"}) {
    EXPECT_FALSE(read_address(text).is_loopback()) << text;
  }
}

}  // namespace
}  // namespace ddp::store_server
