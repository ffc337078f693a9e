// Where a coordinator listens on a host that is in several networks.
#include "launch/coordinator_addresses.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/own_network.hpp"

namespace ddp::launcher {
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
