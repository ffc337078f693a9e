// The candidate interfaces of a host for reaching other hosts, and why.
#include "topology/network/interface_candidates.hpp"

#include "base/slurm_step.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/user_interfaces.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::topology {
namespace {

using base::Environment;

const Environment kNothing{{}};
const PciAddress kAdapter{.domain = 0, .bus = 0x3b, .device = 0, .function = 0};

// 198.51.100.0/24 is TEST-NET-2 (RFC 5737): no route of this host leads from these
InterfaceFact interface(std::string name, InterfaceKind kind, std::string address, bool up = true) {
  InterfaceFact fact;
  fact.interface.name = std::move(name);
  fact.interface.kind = kind;
  fact.interface.up = up;
  if (!address.empty())
    fact.interface.addresses = {{.address = std::move(address), .prefix_length = 24, .ipv6 = false}};
  return fact;
}

std::vector<InterfaceFact> host() {
  return {interface("lo", InterfaceKind::loopback, "127.0.0.1"),
          interface("docker0", InterfaceKind::host_only, "172.17.0.1"),
          interface("eth7", InterfaceKind::hardware, "198.51.100.7"),
          interface("eth8", InterfaceKind::hardware, "198.51.100.8", false),
          interface("eth9", InterfaceKind::bond_slave, ""),
          interface("bond0", InterfaceKind::bond, "198.51.100.9")};
}

std::vector<std::string> names(const CandidateSearch& search) {
  std::vector<std::string> found;
  for (const InterfaceCandidate& candidate : search.candidates) found.push_back(candidate.interface);
  return found;
}

std::vector<std::string> found(const Environment& environment, JobSpan span) {
  return names(find_candidates(environment, host(), {}, {}, span));
}

TEST(LocalInterface, NamedByTheUserForSeveralHostsIsReported) {
  std::vector<NetworkInterface> interfaces;
  for (const InterfaceFact& fact : host()) interfaces.push_back(fact.interface);
  const auto warning = [&](const char* variable, const char* name) {
    return local_interface_warning(Environment{{{variable, name}}}, interfaces, name);
  };
  for (const char* variable : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "DDP_SOCKET_IFNAME"}) {
    EXPECT_THAT(warning(variable, "lo"),
                testing::AllOf(HasSubstr("lo reaches only host"), HasSubstr(std::string(variable) + "=lo names it"),
                               HasSubstr("eth7 (198.51.100.7)"), testing::Not(HasSubstr("docker0"))));
  }
  EXPECT_THAT(warning("GLOO_SOCKET_IFNAME", "docker0"), HasSubstr("docker0 reaches only host"));
  EXPECT_EQ(warning("DDP_SOCKET_IFNAME", "eth7"), "");
  EXPECT_EQ(local_interface_warning(kNothing, interfaces, ""), "") << "none was chosen";
}

TEST(InterfaceCandidates, OneNodeStaysOnLoopback) {
  const auto search = find_candidates(kNothing, host(), {}, {}, JobSpan::one_node);
  EXPECT_THAT(names(search), ElementsAre("lo"));
  EXPECT_EQ(search.candidates[0].at.address.address, "127.0.0.1");
  auto without = host();
  without.erase(without.begin());
  EXPECT_THAT(names(find_candidates(kNothing, without, {}, {}, JobSpan::one_node)), ElementsAre("eth7", "bond0"));
}

TEST(InterfaceCandidates, SeveralNodesNeverGetWhatReachesThisHostOnly) {
  const auto search =
      find_candidates(kNothing, host(), {}, {"127.0.0.1", "no such host.invalid"}, JobSpan::several_nodes);
  EXPECT_THAT(names(search), ElementsAre("eth7", "bond0"));
  EXPECT_THAT(search.rejected,
              ElementsAre("lo (127.0.0.1): reaches only this host", "docker0 (172.17.0.1): reaches only this host",
                          "eth8 (198.51.100.8): is down", "eth9 (no address): is part of a bond"));
}

TEST(InterfaceCandidates, NothingThatReachesOtherHostsIsAnErrorThatSaysWhatThereIs) {
  const std::vector<InterfaceFact> cut_off{host()[0], host()[1]};
  for (const auto& interfaces : {cut_off, {}}) {
    const Error error =
        ddp::test::error_of([&] { find_candidates(kNothing, interfaces, {}, {}, JobSpan::several_nodes); }).value();
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("no interface can reach other hosts"));
  }
  EXPECT_THAT(names(find_candidates(kNothing, cut_off, {}, {}, JobSpan::unknown)), ElementsAre("lo"))
      << "the ranks may well all be on this host";
}

TEST(InterfaceCandidates, TheUsersNameWinsWhateverItIs) {
  for (const JobSpan span : {JobSpan::one_node, JobSpan::several_nodes}) {
    EXPECT_THAT(found(Environment{{{"DDP_SOCKET_IFNAME", "docker0"}}}, span), ElementsAre("docker0"));
    EXPECT_THAT(found(Environment{{{"GLOO_SOCKET_IFNAME", "bond0"}}}, span), ElementsAre("bond0"));
    EXPECT_THAT(found(Environment{{{"GLOO_SOCKET_IFNAME", "bond0"}, {"DDP_SOCKET_IFNAME", "eth7"}}}, span),
                ElementsAre("eth7"));
    EXPECT_THAT(found(Environment{{{"GLOO_SOCKET_IFNAME", "bond0"}, {"DDP_SOCKET_IFNAME", ""}}}, span),
                ElementsAre("bond0"));
    EXPECT_THAT(found(Environment{{{"NCCL_SOCKET_IFNAME", "=eth7"}}}, span), ElementsAre("eth7"));
    EXPECT_THAT(found(Environment{{{"NCCL_SOCKET_IFNAME", "eth7,bo"}}}, span), ElementsAre("eth7", "bond0"));
    EXPECT_THAT(found(Environment{{{"NCCL_SOCKET_IFNAME", "^docker,eth"}}}, span), ElementsAre("bond0"))
        << "a list of what not to take does not let loopback in";
  }
  const auto search =
      find_candidates(Environment{{{"DDP_SOCKET_IFNAME", "eth7"}}}, host(), {}, {}, JobSpan::several_nodes);
  EXPECT_THAT(search.reason, HasSubstr("DDP_SOCKET_IFNAME"));
}

TEST(InterfaceCandidates, WhatTheLauncherSetIsItsChoiceAndNotTheUsers) {
  const auto reason = [](std::map<std::string, std::string, std::less<>> variables) {
    return find_candidates(Environment{std::move(variables)}, host(), {}, {}, JobSpan::several_nodes).reason;
  };
  EXPECT_EQ(reason({{"GLOO_SOCKET_IFNAME", "eth7"}}), "GLOO_SOCKET_IFNAME=eth7 names it");
  EXPECT_EQ(reason({{"GLOO_SOCKET_IFNAME", "eth7"}, {kInterfaceReasonVariable, "eth7: its subnet is on all 2 nodes"}}),
            "ddprun chose it: its subnet is on all 2 nodes");
  // The user has changed it since.
  EXPECT_EQ(reason({{"GLOO_SOCKET_IFNAME", "eth7"}, {kInterfaceReasonVariable, "bond0: it is fast"}}),
            "GLOO_SOCKET_IFNAME=eth7 names it");
  const std::string step = base::encode(
      base::StepSettings{.step = "1.0", .variables = {{"GLOO_SOCKET_IFNAME", base::value_digest("eth7")}}});
  EXPECT_EQ(reason({{"GLOO_SOCKET_IFNAME", "eth7"}, {base::kStepSettingsVariable, step}}),
            "srun --ddp chose it for the step, and set GLOO_SOCKET_IFNAME");
  EXPECT_EQ(reason({{"GLOO_SOCKET_IFNAME", "bond0"}, {base::kStepSettingsVariable, step}}),
            "GLOO_SOCKET_IFNAME=bond0 names it");
}

TEST(InterfaceCandidates, AnUnknownNameListsHostAndInterfaces) {
  std::array<char, 256> self{};
  gethostname(self.data(), self.size() - 1);
  for (const std::string variable : {"DDP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const Error error = ddp::test::thrown_by([&] {
      find_candidates(Environment{{{variable, "wlan"}}}, host(), {}, {}, JobSpan::one_node);
    });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr(variable + "=wlan"));
    EXPECT_THAT(error.what(), HasSubstr(self.data()));
    EXPECT_THAT(error.what(), HasSubstr("lo (127.0.0.1), docker0 (172.17.0.1), eth7 (198.51.100.7)"));
  }
}

TEST(InterfaceCandidates, AnAdapterWithAnActiveRdmaPortComesFirst) {
  auto interfaces = host();
  interfaces[5].pci = kAdapter;
  const auto first = [&](const std::string& state) {
    const std::vector<RdmaFact> rdma{
        {.name = "mlx5_0", .pci = kAdapter, .ports = {{.number = 1, .state = state, .rate_gbps = 0}}}};
    return find_candidates(kNothing, interfaces, rdma, {}, JobSpan::several_nodes).candidates.front();
  };
  EXPECT_EQ(first("ACTIVE").interface, "bond0");
  EXPECT_TRUE(first("ACTIVE").at.fabric);
  EXPECT_EQ(first("DOWN").interface, "eth7");
}

TEST(InterfaceCandidates, TheFasterOneComesFirstAmongEquals) {
  auto interfaces = host();
  interfaces[2].interface.rate_gbps = 1;
  interfaces[5].interface.rate_gbps = 25;
  const auto search = find_candidates(kNothing, interfaces, {}, {}, JobSpan::several_nodes);
  EXPECT_EQ(search.candidates.front().interface, "bond0");
  EXPECT_EQ(search.candidates.front().at.rate_mbps, 25'000U);
}

TEST(InterfaceCandidates, WhatRoutesToThePeersBeatsWhatDoesNot) {
  // This host's own loopback address routes to itself, so an interface with it is the one that routes.
  auto interfaces = host();
  interfaces[5].interface.addresses[0].address = "127.0.0.1";
  const auto search = find_candidates(kNothing, interfaces, {}, {"127.0.0.1"}, JobSpan::several_nodes);
  EXPECT_EQ(search.candidates.front().interface, "bond0");
  EXPECT_EQ(search.reason, "it routes to 127.0.0.1");
}

TEST(InterfaceCandidates, TheRoutesAddressIsTakenAmongSeveralOfOneInterface) {
  auto interfaces = host();
  interfaces[5].interface.addresses.push_back({.address = "127.0.0.1", .prefix_length = 8, .ipv6 = false});
  const auto search = find_candidates(kNothing, interfaces, {}, {"127.0.0.1"}, JobSpan::several_nodes);
  EXPECT_EQ(search.candidates.front().interface, "bond0");
  EXPECT_EQ(search.candidates.front().at.address.address, "127.0.0.1");
  EXPECT_TRUE(search.candidates.front().at.routes_to_peers);
}

TEST(InterfaceCandidates, LoopbackIsMarkedAsAFallback) {
  const std::vector<InterfaceFact> cut_off{host()[0]};
  EXPECT_TRUE(find_candidates(kNothing, cut_off, {}, {}, JobSpan::unknown).loopback_fallback);
  EXPECT_FALSE(find_candidates(kNothing, cut_off, {}, {}, JobSpan::one_node).loopback_fallback);
}

TEST(InterfaceCandidates, AtMostSixAreKept) {
  std::vector<InterfaceFact> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(interface("eth" + std::to_string(i), InterfaceKind::hardware, "198.51.100." + std::to_string(i)));
  }
  EXPECT_EQ(find_candidates(kNothing, many, {}, {}, JobSpan::several_nodes).candidates.size(), kMostCandidates);
}

TEST(InterfaceCandidates, ThisHostHasLoopback) {
  const auto interfaces = read_interfaces("/sys", list_raw_interfaces());
  const auto search = find_candidates(kNothing, interfaces, {}, {}, JobSpan::one_node);
  EXPECT_THAT(names(search), ElementsAre("lo"));
}

}  // namespace
}  // namespace ddp::topology
