// One host under several names and addresses is one host.
#include "launch/host_identity.hpp"

#include <gmock/gmock.h>

#include <map>

#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Hosts = std::vector<HostEntry>;

/// A site: n0 has an alias and two addresses, n1 one name, and "me" is this host.
HostKnowledge site() {
  static const std::map<std::string, std::vector<std::string>> kKnown{
      {"n0", {"10.0.0.1", "fd00::1"}}, {"node-zero", {"10.0.0.1"}}, {"n0.site", {"fd00::1"}},
      {"10.0.0.1", {"10.0.0.1"}},      {"n1", {"10.0.0.2"}},        {"me", {"10.0.0.9"}},
      {"127.0.1.1", {"127.0.1.1"}}};
  return {.addresses =
              [](const std::string& host) {
                const auto found = kKnown.find(host);
                return found != kKnown.end() ? found->second : std::vector<std::string>{};
              },
          .is_own = [](const std::string& address) { return address == "10.0.0.9" || address == "127.0.1.1"; }};
}

TEST(HostIdentity, AliasesAndAddressesAreOneHostWithAllTheirRanks) {
  Hosts hosts{{"n0", 2, 4}, {"n1", 1, 0}, {"node-zero", 1, 4}, {"10.0.0.1", 1, 4}, {"n0.site", 1, 4}, {"n2", 1, 0}};
  EXPECT_THAT(unite_hosts(hosts, site()),
              AllOf(HasSubstr("'node-zero' is 'n0' (10.0.0.1)"), HasSubstr("'n0.site' is 'n0'")));
  EXPECT_EQ(hosts, (Hosts{{"n0", 5, 16}, {"n1", 1, 0}, {"n2", 1, 0}}));
}

TEST(HostIdentity, ThisHostIsOne) {
  Hosts hosts{{"n1", 1, 0}, {"me", 1, 0}, {"localhost", 2, 0}, {base::host_name(), 3, 0}, {"127.0.1.1", 4, 0}};
  EXPECT_EQ(unite_hosts(hosts, site()), "");
  HostEntry here{"me", 10, 0};
  here.here = true;
  EXPECT_EQ(hosts, (Hosts{{"n1", 1, 0}, here}));
}

TEST(HostIdentity, WithoutNumbersItIsSaidThatAHostCountsOnce) {
  Hosts hosts{{"localhost", 0, 0}, {base::host_name(), 0, 0}};
  EXPECT_THAT(unite_hosts(hosts, site()), HasSubstr("is 'localhost'"));
  ASSERT_EQ(hosts.size(), 1U);
  EXPECT_TRUE(hosts[0].here);
  EXPECT_EQ(hosts[0].ranks, 0);
}

TEST(HostIdentity, HostsThatTheResolverDoesNotKnowStayApart) {
  Hosts hosts{{"a", 1, 0}, {"b", 1, 0}};
  EXPECT_EQ(unite_hosts(hosts, site()), "");
  EXPECT_EQ(hosts.size(), 2U);
}

TEST(HostIdentity, ThisMachinesResolverAndInterfaces) {
  Hosts hosts{{"192.0.2.1", 1, 0}, {"127.0.0.1", 1, 0}, {"127.0.0.2", 1, 0}};  // RFC 5737: nobody's
  unite_hosts(hosts);
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_FALSE(hosts[0].here);
  EXPECT_TRUE(hosts[1].here);
  EXPECT_EQ(hosts[1].ranks, 2);
}

}  // namespace
}  // namespace ddp::launcher
