// A source that floods a listener crowds out only itself.
#include "base/connection_source.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace ddp::base {
namespace {

ConnectionSource source(const std::string& text) {
  sockaddr_storage address{};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
  if (::inet_pton(AF_INET, text.c_str(), &ipv4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else {
    EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &ipv6.sin6_addr), 1) << text;
    address.ss_family = AF_INET6;
  }
  return source_of(address);
}

TEST(ConnectionSource, IsAnAddressOrANetworkOfSixtyFourBits) {
  EXPECT_EQ(source("10.0.0.1"), source("::ffff:10.0.0.1"));
  EXPECT_NE(source("10.0.0.1"), source("10.0.0.2"));
  EXPECT_EQ(source("2001:db8::1"), source("2001:db8::ffff:1"));
  EXPECT_NE(source("2001:db8::1"), source("2001:db8:0:1::1"));
}

TEST(ConnectionSource, OfLoopbackIsOne) {
  for (const char* text : {"127.1.2.3", "::1", "::ffff:127.0.0.9"}) EXPECT_EQ(source(text), source("127.0.0.1"));
  EXPECT_NE(source("127.0.0.1"), source("10.0.0.1"));
  EXPECT_NE(source("::1"), source("::2"));
}

TEST(SourceShares, TheLargestIsTheLongestPresentOfSeveral) {
  const ConnectionSource one = source("10.0.0.1");
  const ConnectionSource two = source("10.0.0.2");
  SourceShares shares;
  shares.add(one);
  shares.add(two);
  EXPECT_EQ(shares.largest(), one);
  shares.add(two);
  EXPECT_EQ(shares.largest(), two);
  EXPECT_EQ(shares.of(two), 2U);
  shares.remove(two);
  shares.remove(one);
  EXPECT_EQ(shares.of(one), 0U);
  shares.add(one);
  EXPECT_EQ(shares.largest(), two);
  shares.clear();
  shares.add(one);
  EXPECT_EQ(shares.largest(), one);
}

}  // namespace
}  // namespace ddp::base
