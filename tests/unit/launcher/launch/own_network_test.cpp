// Which names and addresses are this host's own: one that is has the coordinator.
#include "launch/own_network.hpp"

#include <gtest/gtest.h>

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

// Addresses for documentation (RFC 5737 and 3849), and a name that never resolves (RFC 6761).
TEST(OwnNetwork, OthersAreNot) {
  for (const char* host : {"192.0.2.1", "12.7.0.1", "2001:db8::1", "n1.invalid"}) {
    EXPECT_FALSE(is_own_name(host)) << host;
  }
}

}  // namespace
}  // namespace ddp::launcher
