// Which names and addresses are this host's own: one that is has the coordinator.
#include "launch/own_network.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

TEST(OwnNetwork, EachLoopbackAddressIsOwn) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "127.255.1.2", "::1"}) {
    EXPECT_TRUE(is_own_name(host)) << host;
  }
}

TEST(OwnNetwork, TheHostsNameAndTheAddressesThatOthersLearnAreOwn) {
  EXPECT_TRUE(is_own_name(base::host_name()));
  for (const std::string& address : own_network("", "", base::Environment{{}}).addresses) {
    EXPECT_TRUE(is_own_name(address)) << address;
  }
}

TEST(ListeningAddresses, AreThoseOfTheEndpointAlone) {
  const auto are = [](const std::string& host) { return listening_addresses(host); };
  EXPECT_EQ(are("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(are("127.0.0.9"), std::vector<std::string>{"127.0.0.9"});
  EXPECT_EQ(are("127.1"), std::vector<std::string>{"127.0.0.1"});  // as inet_aton(3) reads it
  for (const std::string& address : are("localhost"))
    EXPECT_TRUE(address == "127.0.0.1" || address == "::1") << address;
  EXPECT_FALSE(are("localhost").empty());
  for (const std::string& address : own_network("", "", base::Environment{{}}).addresses) {
    EXPECT_EQ(are(address), std::vector<std::string>{address});
  }
  EXPECT_TRUE(are("192.0.2.1").empty());
}

// Whether /etc/hosts gives it a loopback address, as some distributions do, or one that others know.
TEST(ListeningAddresses, OfTheHostsNameCanBeReachedByOthers) {
  const std::vector<std::string> addresses = listening_addresses(base::host_name());
  EXPECT_TRUE(std::any_of(addresses.begin(), addresses.end(),
                          [](const std::string& address) { return !address.starts_with("127.") && address != "::1"; }));
}

// Addresses for documentation (RFC 5737 and 3849), and a name that never resolves (RFC 6761).
TEST(OwnNetwork, OthersAreNot) {
  for (const char* host : {"192.0.2.1", "12.7.0.1", "2001:db8::1", "n1.invalid"}) {
    EXPECT_FALSE(is_own_name(host)) << host;
  }
}

}  // namespace
}  // namespace ddp::launcher
