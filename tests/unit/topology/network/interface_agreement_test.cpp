// Which network all nodes of a job agree on.
#include "topology/network/interface_agreement.hpp"

namespace ddp::topology {
namespace {

struct Traits {
  bool fabric = false;
  bool routes = false;
  std::uint32_t rate_mbps = 0;
};

CandidateAddress at(std::string address, int prefix_length = 24, Traits traits = {}) {
  const bool ipv6 = address.find(':') != std::string::npos;
  return {.address = {.address = std::move(address), .prefix_length = prefix_length, .ipv6 = ipv6},
          .fabric = traits.fabric,
          .routes_to_peers = traits.routes,
          .rate_mbps = traits.rate_mbps};
}

using Nodes = std::vector<std::vector<CandidateAddress>>;

std::string agreed(const Nodes& nodes) {
  const Agreement agreement = agree(nodes);
  return agreement.subnet ? agreement.subnet->to_string() : "none";
}

TEST(Subnet, KeepsTheNetworkBits) {
  const auto text = [](const std::string& address, int prefix_length) {
    return Subnet::of(at(address, prefix_length).address)->to_string();
  };
  EXPECT_EQ(text("10.1.2.3", 24), "10.1.2.0/24");
  EXPECT_EQ(text("10.1.2.255", 25), "10.1.2.128/25");
  EXPECT_EQ(text("10.1.2.3", 32), "10.1.2.3/32");
  EXPECT_EQ(text("10.1.2.3", 0), "0.0.0.0/0");
  EXPECT_EQ(text("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
  EXPECT_EQ(Subnet::of(at("no address").address), std::nullopt);
  EXPECT_NE(Subnet::of(at("10.1.2.3", 24).address), Subnet::of(at("10.1.2.3", 16).address));
}

TEST(InterfaceAgreement, TheSubnetThatIsOnAllNodes) {
  const Nodes nodes{{at("192.168.9.1"), at("10.0.0.1")}, {at("10.0.0.2"), at("192.168.7.1")}, {at("10.0.0.3")}};
  EXPECT_EQ(agreed(nodes), "10.0.0.0/24");
  const Agreement agreement = agree(nodes);
  EXPECT_EQ(pick(nodes[0], agreement), 1U);
  EXPECT_EQ(pick(nodes[1], agreement), 0U);
  EXPECT_THAT(agreement.reason, HasSubstr("10.0.0.0/24 is on all 3 nodes"));
  EXPECT_THAT(agreement.alternatives, Contains("192.168.9.0/24: only on 1 of 3 nodes"));
}

TEST(InterfaceAgreement, ANetworkInWhichNodesHaveTheSameAddressIsNone) {
  // docker0 and the like: 172.17.0.1 on every host
  const Nodes nodes{{at("172.17.0.1", 16, {.fabric = true}), at("10.0.0.1")},
                    {at("172.17.0.1", 16, {.fabric = true}), at("10.0.0.2")}};
  EXPECT_EQ(agreed(nodes), "10.0.0.0/24");
  EXPECT_THAT(agree(nodes).alternatives, Contains("172.17.0.0/16: nodes have the same address in it"));
}

TEST(InterfaceAgreement, FabricBeatsRouteBeatsRate) {
  const auto nodes = [](Traits a, Traits b) {
    return Nodes{{at("10.0.0.1", 24, a), at("10.1.0.1", 24, b)}, {at("10.0.0.2", 24, a), at("10.1.0.2", 24, b)}};
  };
  EXPECT_EQ(agreed(nodes({.fabric = true}, {.routes = true, .rate_mbps = 400'000})), "10.0.0.0/24");
  EXPECT_EQ(agreed(nodes({.routes = true, .rate_mbps = 1'000}, {.rate_mbps = 25'000})), "10.0.0.0/24");
  EXPECT_EQ(agreed(nodes({.rate_mbps = 1'000}, {.rate_mbps = 25'000})), "10.1.0.0/24");
  EXPECT_EQ(agreed(nodes({}, {})), "10.0.0.0/24") << "a tie goes to the lower network, on every node";
}

TEST(InterfaceAgreement, OneSlowNodeMakesItsNetworkSlow) {
  const Nodes nodes{{at("10.0.0.1", 24, {.rate_mbps = 100'000}), at("10.1.0.1", 24, {.rate_mbps = 25'000})},
                    {at("10.0.0.2", 24, {.rate_mbps = 1'000}), at("10.1.0.2", 24, {.rate_mbps = 25'000})}};
  EXPECT_EQ(agreed(nodes), "10.1.0.0/24");
}

TEST(InterfaceAgreement, WithoutACommonSubnetEachNodeUsesWhatRoutes) {
  const Nodes nodes{{at("10.0.1.1"), at("10.9.1.1", 24, {.routes = true})},
                    {at("10.9.2.1", 24, {.routes = true}), at("10.0.2.1")},
                    {at("10.5.0.1"), at("10.6.0.1")}};
  const Agreement agreement = agree(nodes);
  EXPECT_FALSE(agreement.subnet);
  EXPECT_EQ(pick(nodes[0], agreement), 1U);
  EXPECT_EQ(pick(nodes[1], agreement), 0U);
  EXPECT_EQ(pick(nodes[2], agreement), 0U) << "the best by its own order";
}

TEST(InterfaceAgreement, RoutedNetworksBeatACommonOneThatLeadsNowhere) {
  const auto nodes = [](Traits common) {
    return Nodes{{at("10.0.0.1", 24, {.routes = true}), at("10.99.0.1", 24, common)},
                 {at("10.0.1.1", 24, {.routes = true}), at("10.99.0.2", 24, common)}};
  };
  const Agreement agreement = agree(nodes({.rate_mbps = 100'000}));
  EXPECT_FALSE(agreement.subnet);
  EXPECT_EQ(pick(nodes({})[1], agreement), 0U);
  EXPECT_THAT(agreement.alternatives, Contains("10.99.0.0/24: does not route to the peers on any node"));
  EXPECT_EQ(agreed(nodes({.fabric = true})), "10.99.0.0/24") << "a fabric needs no route to host names";
}

TEST(InterfaceAgreement, IsTheSameWhateverTheOrderOfCandidates) {
  Nodes nodes{{at("10.0.0.1"), at("10.1.0.1"), at("fd00::1", 64)}, {at("10.1.0.2"), at("fd00::2", 64), at("10.0.0.2")}};
  const std::string first = agreed(nodes);
  for (int i = 0; i < 6; ++i) {
    for (auto& candidates : nodes) std::rotate(candidates.begin(), candidates.begin() + 1, candidates.end());
    EXPECT_EQ(agreed(nodes), first);
    std::swap(nodes[0][0], nodes[0][1]);
  }
}

}  // namespace
}  // namespace ddp::topology
