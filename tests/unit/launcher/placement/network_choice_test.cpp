// The interface of each node is the one in the network that all nodes share, whatever it is called there.
#include "placement/network_choice.hpp"

#include <ddp/error.hpp>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::launcher {
namespace {

topology::InterfaceCandidate candidate(std::string interface, std::string address, bool fabric = false,
                                       bool routes = false) {
  return {.interface = std::move(interface),
          .at = {.address = {.address = std::move(address), .prefix_length = 24, .ipv6 = false},
                 .fabric = fabric,
                 .routes_to_peers = routes,
                 .rate_mbps = 1000}};
}

NodeNetwork node(std::vector<topology::InterfaceCandidate> candidates) {
  return {.candidates = std::move(candidates), .reason = "of its own"};
}

TEST(NetworkChoice, TheSharedNetworkWinsWhateverItsName) {
  const auto choices = choose_interfaces({node({candidate("eth0", "10.1.0.1"), candidate("eth1", "10.2.0.1")}),
                                          node({candidate("ens3", "10.3.0.2"), candidate("ens4", "10.2.0.2")})});
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_EQ(choices[0].name, "eth1");
  EXPECT_EQ(choices[0].address, "10.2.0.1");
  EXPECT_EQ(choices[1].name, "ens4");
  EXPECT_EQ(choices[1].address, "10.2.0.2");
  EXPECT_THAT(choices[1].reason, HasSubstr("10.2.0.0/24"));
}

TEST(NetworkChoice, AFabricIsPreferred) {
  const auto choices =
      choose_interfaces({node({candidate("eth0", "10.1.0.1", false, true), candidate("ib0", "10.2.0.1", true)}),
                         node({candidate("eth0", "10.1.0.2", false, true), candidate("ib0", "10.2.0.2", true)})});
  EXPECT_EQ(choices[0].name, "ib0");
  EXPECT_EQ(choices[1].name, "ib0");
}

TEST(NetworkChoice, WithoutASharedNetworkEachUsesWhatRoutes) {
  const auto choices = choose_interfaces({node({candidate("a", "10.1.0.1"), candidate("b", "10.2.0.1", false, true)}),
                                          node({candidate("c", "10.3.0.2", false, true), candidate("d", "10.4.0.2")})});
  EXPECT_EQ(choices[0].name, "b");
  EXPECT_EQ(choices[1].name, "c");
}

TEST(NetworkChoice, ANodeWithoutAChoiceKeepsItsReason) {
  const auto choices = choose_interfaces(
      {node({candidate("eth0", "10.1.0.1")}), node({candidate("eth0", "10.1.0.2"), candidate("eth1", "10.9.0.2")})});
  EXPECT_EQ(choices[0].reason, "of its own");
  EXPECT_EQ(choices[1].name, "eth0");
}

TEST(NetworkChoice, OneNodeAndNone) {
  EXPECT_TRUE(choose_interfaces({}).empty());
  const auto choices = choose_interfaces({node({candidate("eth0", "10.1.0.1"), candidate("eth1", "10.2.0.1")})});
  EXPECT_EQ(choices.at(0).name, "eth0");
}

TEST(NetworkChoice, ANodeWithoutInterfacesIsRefused) {
  const Error error = ddp::test::thrown_by([] {
    choose_interfaces({node({candidate("eth0", "10.1.0.1")}), node({})});
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("node 1"));
}

TEST(NetworkChoice, ReadsThisHostAsTheUserSays) {
  const base::Environment loopback{{{"DDP_SOCKET_IFNAME", "lo"}}};
  const NodeNetwork network = read_node_network(loopback, {});
  ASSERT_EQ(network.candidates.size(), 1U);
  EXPECT_EQ(network.candidates[0].interface, "lo");
  EXPECT_THAT(network.reason, HasSubstr("DDP_SOCKET_IFNAME"));

  const base::Environment unknown{{{"DDP_SOCKET_IFNAME", "nosuch7"}}};
  const Error error = ddp::test::thrown_by([&] { read_node_network(unknown, {}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp::launcher
