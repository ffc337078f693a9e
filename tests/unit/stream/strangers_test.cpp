// A source that floods a listener crowds out only itself, and who is silent or slow is known to be late.
#include "stream/strangers.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace ddp::stream {
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
}

/// Of sources that are named by a number.
struct Crowd : Strangers {
  using Strangers::Strangers;
  void come(std::uint8_t from, bool known = false) { add(++last, {{from}}, known); }
  Number last = 0;
};
constexpr StrangerLimits kLong{
    .most = 3, .patience = std::chrono::hours(2), .silence = std::chrono::hours(1), .crowd = 3};

TEST(Strangers, TheOldestOfTheMostNumerousSourceGoes) {
  Crowd strangers{kLong};
  EXPECT_FALSE(strangers.most_crowding());
  EXPECT_FALSE(strangers.full());
  strangers.come(1);
  strangers.come(1);
  strangers.come(2);
  EXPECT_TRUE(strangers.full());
  EXPECT_FALSE(strangers.crowded());
  strangers.come(2);
  strangers.come(2);
  EXPECT_TRUE(strangers.crowded());
  EXPECT_EQ(strangers.most_crowding(), 3U);
  strangers.believe(3);
  EXPECT_EQ(strangers.most_crowding(), 4U);  // that has said nothing right
  strangers.remove(4);
  strangers.remove(4);
  EXPECT_EQ(strangers.most_crowding(), 1U);  // as many: the source that came first
  strangers.believe(1);
  strangers.believe(2);
  EXPECT_EQ(strangers.most_crowding(), 1U);
}

TEST(Strangers, TheKnownCrowdNobodyAndGoLast) {
  Crowd strangers{kLong};
  for (int i = 0; i < 5; ++i) strangers.come(1, true);
  EXPECT_EQ(strangers.size(), 0U);
  EXPECT_FALSE(strangers.most_crowding());
  EXPECT_EQ(strangers.oldest_known(), 1U);
  strangers.come(2);
  EXPECT_EQ(strangers.most_crowding(), 6U);
  strangers.recognize(6);
  strangers.recognize(6);
  EXPECT_EQ(strangers.size(), 0U);
  EXPECT_FALSE(strangers.most_crowding());
}

TEST(Strangers, TheSilentAreLateFirst) {
  using std::chrono::hours;
  const auto in_hours = [](const Strangers& strangers) {
    return std::chrono::round<hours>(strangers.next_end()->remaining()).count();
  };
  Crowd strangers{kLong};
  EXPECT_FALSE(strangers.next_end());
  strangers.come(1);
  EXPECT_EQ(in_hours(strangers), 1);
  strangers.heard(1);
  EXPECT_EQ(in_hours(strangers), 2);
  strangers.come(1, true);  // the known have no more time
  EXPECT_EQ(in_hours(strangers), 1);
  EXPECT_FALSE(strangers.late());
  Crowd now{StrangerLimits{.patience = hours(1), .silence = hours(0)}};
  now.come(1);
  now.come(1);
  now.heard(1);
  ASSERT_TRUE(now.late());
  EXPECT_EQ(now.late()->number, 2U);
  EXPECT_TRUE(now.late()->silent);
  now.remove(2);
  EXPECT_FALSE(now.late());
  Crowd over{StrangerLimits{.patience = hours(0), .silence = hours(0)}};
  over.come(1);
  over.heard(1);
  ASSERT_TRUE(over.late());
  EXPECT_FALSE(over.late()->silent);
}

}  // namespace
}  // namespace ddp::stream
