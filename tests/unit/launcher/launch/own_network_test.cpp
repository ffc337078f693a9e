// Which names and addresses are this host's own: one that is has the coordinator.
#include "launch/own_network.hpp"
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

// One host under several names and addresses is one host.

namespace {

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

// Where a coordinator listens on a host that is in several networks.

namespace {

using Addresses = std::vector<std::string>;
using HostAddresses = std::vector<Addresses>;

topology::InterfaceFact interface_at(const char* name, InterfaceKind kind, std::vector<InterfaceAddress> addresses) {
  topology::InterfaceFact fact;
  fact.interface.name = name;
  fact.interface.kind = kind;
  fact.interface.up = true;
  fact.interface.addresses = std::move(addresses);
  return fact;
}

/// A login node: in the network of its site, in two of the cluster's, and with a bridge for containers.
Addresses towards(const HostAddresses& hosts) {
  const auto v4 = [](const char* address, int bits) {
    return InterfaceAddress{.address = address, .prefix_length = bits, .ipv6 = false};
  };
  const std::vector<topology::InterfaceFact> interfaces{
      interface_at("lo", InterfaceKind::loopback, {v4("127.0.0.1", 8)}),
      interface_at("eth0", InterfaceKind::hardware, {v4("198.51.100.7", 24)}),
      interface_at("eth1", InterfaceKind::hardware,
                   {v4("10.1.0.1", 16), {.address = "fd00:1::1", .prefix_length = 64, .ipv6 = true}}),
      interface_at("ib0", InterfaceKind::hardware, {v4("10.2.0.1", 16)}),
      interface_at("docker0", InterfaceKind::host_only, {v4("172.17.0.1", 16)})};
  return addresses_towards({"10.2.0.1", "198.51.100.7", "10.1.0.1", "fd00:1::1", "172.17.0.1"}, interfaces, hosts);
}

const Addresses kAllAddresses{"10.2.0.1", "198.51.100.7", "10.1.0.1", "fd00:1::1", "172.17.0.1"};

TEST(CoordinatorAddresses, AreThoseOfTheNetworksThatTheNodesAreIn) {
  EXPECT_EQ(towards({{"10.1.0.2"}, {"10.1.255.3"}}), (Addresses{"10.1.0.1", "fd00:1::1"}));
  EXPECT_EQ(towards({{"fd00:1::2"}}), (Addresses{"10.1.0.1", "fd00:1::1"}));
  EXPECT_EQ(towards({{"10.1.0.2"}, {"10.2.0.9"}}), (Addresses{"10.2.0.1", "10.1.0.1", "fd00:1::1"}));
  EXPECT_EQ(towards({{"10.1.0.2", "10.2.0.2"}}), (Addresses{"10.2.0.1", "10.1.0.1", "fd00:1::1"}));
  EXPECT_EQ(towards({{"172.17.0.2"}}), Addresses{"172.17.0.1"});  // nodes in containers
}

TEST(CoordinatorAddresses, AreAllWhereANodeIsElsewhere) {
  EXPECT_EQ(towards({}), kAllAddresses);
  EXPECT_EQ(towards({{"10.1.0.2"}, {"10.3.0.2"}}), kAllAddresses);   // behind a gateway
  EXPECT_EQ(towards({{"10.1.0.2"}, {}}), kAllAddresses);             // unknown to the resolver
  EXPECT_EQ(towards({{"10.1.0.2"}, {"127.0.1.1"}}), kAllAddresses);  // as some distributions name their own host
}

TEST(CoordinatorAddresses, OfAHostWithoutAName) {
  const Addresses own = own_network("", "", base::Environment{{}}).addresses;
  EXPECT_EQ(coordinator_addresses(own, {"n1.invalid"}), own);
}

TEST(OtherNodes, AreThoseOfStepAndJobAndOfAllComponents) {
  using Names = std::vector<std::string>;
  const auto others = [](std::map<std::string, std::string, std::less<>> variables) {
    return other_nodes(base::Environment{std::move(variables)});
  };
  EXPECT_EQ(others({}), std::nullopt);
  EXPECT_EQ(others({{"SLURM_JOB_NODELIST", "n[0-2]"}}), (Names{"n0", "n1", "n2"}));
  EXPECT_EQ(others({{"SLURM_JOB_NODELIST", "n[0-2]"}, {"SLURMD_NODENAME", "n1"}}), (Names{"n0", "n2"}));
  EXPECT_EQ(others({{"SLURM_JOB_NODELIST", "n[0-2]"}, {"SLURM_STEP_NODELIST", "n[1-3]"}}),
            (Names{"n1", "n2", "n3", "n0"}));
  EXPECT_EQ(others({{"SLURM_JOB_NODELIST", "n[0-"}}), std::nullopt);
  EXPECT_EQ(others({{"SLURM_HET_SIZE", "2"},
                    {"SLURM_JOB_NODELIST_HET_GROUP_0", "n0"},
                    {"SLURM_JOB_NODELIST_HET_GROUP_1", "gpu[1-2]"}}),
            (Names{"n0", "gpu1", "gpu2"}));
  EXPECT_EQ(others({{"SLURM_HET_SIZE", "2"}, {"SLURM_STEP_NODELIST", "n0"}, {"SLURM_JOB_NODELIST_HET_GROUP_0", "n0"}}),
            std::nullopt);
}

}  // namespace

}  // namespace ddp::launcher
