// Nodes of a step, each a thread, that agree on a network in a real store.
#include "step_program/network_choice.hpp"

#include <algorithm>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "store_server/store_server.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/step_store.hpp"
#include "topology/network/interface_agreement.hpp"

namespace ddp::srun_plugin {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using topology::InterfaceCandidate;

InterfaceCandidate candidate(std::string interface, std::string address, bool routes, bool fabric = false) {
  return {.interface = std::move(interface),
          .at = {.address = {.address = std::move(address), .prefix_length = 24, .ipv6 = false},
                 .fabric = fabric,
                 .routes_to_peers = routes,
                 .rate_mbps = 1000}};
}

/// Node i: management Ethernet that routes, and an RDMA network under a name of its own.
topology::CandidateSearch two_networks(int node) {
  return {.candidates = {candidate("ib" + std::to_string(node), "10.1.0." + std::to_string(node + 1), false, true),
                         candidate("eth0", "10.0.0." + std::to_string(node + 1), true)},
          .reason = "its adapter is made for clusters (RDMA)",
          .loopback_fallback = false};
}
topology::CandidateSearch ethernet_only(int node) {
  topology::CandidateSearch search = two_networks(node);
  search.candidates.erase(search.candidates.begin());
  search.reason = "it is the only one that can reach other hosts";
  return search;
}

class NetworkChoiceTest : public testing::Test {
 protected:
  static PlanQuestion question(const std::string& node, std::uint16_t port) {
    return {.bind = BindPolicy::numa,
            .gpus = topology::GpuVisibility::all,
            .backend = "auto",
            .node_list = "n[0-3]",
            .node_name = node,
            .store_address = "127.0.0.1",
            .store_port = port};
  }
  std::future<NetworkChoice> choose(int node, topology::CandidateSearch own, AgreementLimits limits = {}) {
    return std::async(std::launch::async, [this, node, own = std::move(own), limits] {
      return choose_between_nodes(own, question(nodes_[static_cast<std::size_t>(node)], server_.port()), nodes_,
                                  limits);
    });
  }

  const std::vector<std::string> nodes_{"n0", "n1", "n2", "n3"};
  store_server::StoreServer server_{{.listen_addresses = {"127.0.0.1"}}};
};

constexpr AgreementLimits kShort{.first = milliseconds{300}, .others = milliseconds{900}};

std::vector<NetworkChoice> results(std::vector<std::future<NetworkChoice>>& running) {
  std::vector<NetworkChoice> all;
  for (auto& each : running) all.push_back(each.get());
  return all;
}
std::vector<std::string> names(const std::vector<NetworkChoice>& choices) {
  std::vector<std::string> list;
  for (const NetworkChoice& choice : choices) list.push_back(choice.interface.name);
  return list;
}
std::vector<std::string> warnings(const std::vector<NetworkChoice>& choices) {
  std::vector<std::string> list;
  for (const NetworkChoice& choice : choices) {
    if (!choice.warning.empty()) list.push_back(choice.warning);
  }
  return list;
}

TEST_F(NetworkChoiceTest, EachNodeTakesItsInterfaceOfTheCommonNetwork) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {3, 1, 0, 2}) running.push_back(choose(node, two_networks(node)));
  const auto all = results(running);
  EXPECT_THAT(names(all), ElementsAre("ib3", "ib1", "ib0", "ib2"));
  for (const NetworkChoice& choice : all) {
    EXPECT_THAT(choice.interface.reason, HasSubstr("10.1.0.0/24"));
    EXPECT_THAT(choice.remarks,
                ElementsAre(MatchesRegex("agreeing with the other 3 nodes on a network took [0-9]+ ms")));
  }
  EXPECT_THAT(warnings(all), IsEmpty());
}

TEST_F(NetworkChoiceTest, AFabricThatOneNodeLacksSeparatesNobody) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 1, 3}) running.push_back(choose(node, two_networks(node)));
  running.push_back(choose(2, ethernet_only(2)));
  const auto all = results(running);
  EXPECT_THAT(names(all), Each("eth0"));
  EXPECT_EQ(all[3].interface.reason, "it is the only one that can reach other hosts");
  EXPECT_THAT(warnings(all), IsEmpty());
}

TEST_F(NetworkChoiceTest, TheChoiceIsThatOfWorld) {
  std::vector<std::vector<topology::CandidateAddress>> addresses;
  std::vector<topology::CandidateSearch> searches{two_networks(0), two_networks(1), ethernet_only(2), two_networks(3)};
  for (const auto& search : searches) {
    auto& own = addresses.emplace_back();
    for (const InterfaceCandidate& each : search.candidates) own.push_back(each.at);
  }
  const topology::Agreement agreement = topology::agree(addresses);
  std::vector<std::future<NetworkChoice>> running;
  for (int node = 0; node < 4; ++node) running.push_back(choose(node, searches[static_cast<std::size_t>(node)]));
  const auto all = results(running);
  for (std::size_t node = 0; node < 4; ++node) {
    const std::size_t picked = topology::pick(addresses[node], agreement);
    EXPECT_EQ(all[node].interface.name, searches[node].candidates[picked].interface) << node;
  }
}

TEST_F(NetworkChoiceTest, ASilentNodeIsNamedOnceAndAllUseTheirRoutes) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 1, 3}) running.push_back(choose(node, two_networks(node), kShort));
  const auto all = results(running);
  EXPECT_THAT(names(all), Each("eth0"));
  EXPECT_THAT(warnings(all), ElementsAre(AllOf(HasSubstr("n2 did not take part within 0.3 s"), HasSubstr("plugin"),
                                               HasSubstr("routes to the others"))));
}

TEST_F(NetworkChoiceTest, TheFirstNodeMayBeTheSilentOne) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {1, 2}) running.push_back(choose(node, two_networks(node), kShort));
  const auto all = results(running);
  EXPECT_THAT(names(all), Each("eth0"));
  EXPECT_THAT(warnings(all), ElementsAre(HasSubstr("n0, n3 did not take part within 0.9 s")));
}

TEST_F(NetworkChoiceTest, WhoComesTooLateFollowsTheOthers) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 1, 3}) running.push_back(choose(node, two_networks(node), kShort));
  auto all = results(running);
  all.push_back(choose(2, two_networks(2)).get());
  EXPECT_THAT(names(all), Each("eth0")) << "all interfaces are of one network";
  EXPECT_EQ(warnings(all).size(), 1U);
}

TEST_F(NetworkChoiceTest, ALateFirstNodeFollowsTheOthers) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {1, 2, 3}) running.push_back(choose(node, two_networks(node), kShort));
  auto all = results(running);
  all.push_back(choose(0, two_networks(0)).get());
  EXPECT_THAT(names(all), Each("eth0")) << "all interfaces are of one network";
  EXPECT_EQ(warnings(all).size(), 1U);
}

TEST_F(NetworkChoiceTest, TwoComponentsOnOneNodeAreOneNode) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 0, 1, 1, 2, 3}) running.push_back(choose(node, two_networks(node)));
  EXPECT_THAT(names(results(running)), ElementsAre("ib0", "ib0", "ib1", "ib1", "ib2", "ib3"));
}

TEST_F(NetworkChoiceTest, ANodeWithoutAnInterfaceHoldsUpNobody) {
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 1, 3}) running.push_back(choose(node, two_networks(node)));
  running.push_back(choose(2, {}));
  EXPECT_THAT(names(results(running)), ElementsAre("ib0", "ib1", "ib3", ""));
}

TEST_F(NetworkChoiceTest, ANodeOfAnotherVersionIsNamed) {
  StepStore other("127.0.0.1", server_.port());
  other.set("ddp-step/network/node/n2", base::to_bytes("\x09 another"));
  EXPECT_EQ(other.get({"ddp-step/network/node/n2"}).size(), 1U);
  std::vector<std::future<NetworkChoice>> running;
  for (const int node : {0, 1, 3}) running.push_back(choose(node, two_networks(node)));
  const auto all = results(running);
  EXPECT_THAT(names(all), Each("eth0"));
  EXPECT_THAT(warnings(all), ElementsAre(HasSubstr("the libddp of n2 is of another version")));
}

TEST_F(NetworkChoiceTest, WithoutAStoreEachUsesItsRoute) {
  const NetworkChoice choice = choose_between_nodes(two_networks(1), question("n1", 0), nodes_);
  EXPECT_EQ(choice.interface.name, "eth0");
  EXPECT_THAT(choice.remarks, ElementsAre(HasSubstr("without a store")));
  EXPECT_EQ(choice.warning, "");
}

TEST_F(NetworkChoiceTest, AStoreThatIsGoneIsSaid) {
  std::uint16_t port = 0;
  {
    const store_server::StoreServer gone{{.listen_addresses = {"127.0.0.1"}}};
    port = gone.port();
  }
  const NetworkChoice choice = choose_between_nodes(two_networks(1), question("n1", port), nodes_);
  EXPECT_EQ(choice.interface.name, "eth0");
  EXPECT_THAT(choice.warning, AllOf(HasSubstr("n1 does not agree"), HasSubstr("ECONNREFUSED")));
}

TEST_F(NetworkChoiceTest, ANodeThatTheStepDoesNotListWaitsForNobody) {
  const NetworkChoice choice = choose_between_nodes(two_networks(1), question("other", server_.port()), nodes_);
  EXPECT_EQ(choice.interface.name, "eth0");
  EXPECT_THAT(choice.remarks, ElementsAre(HasSubstr("other, is not among the step's (n[0-3])")));
}

TEST(NetworkNotes, ComeBackAsTheyWere) {
  const NodeNote note{two_networks(1).candidates[0].at, two_networks(1).candidates[1].at};
  EXPECT_EQ(decode_note(encode(note)), note);
  EXPECT_EQ(decode_note(encode(NodeNote{})), NodeNote{});
  const NetworkDecision decision{.subnet = topology::Subnet::of(note.front().address), .reason = "fast", .by = "n0"};
  EXPECT_EQ(decode_decision(encode(decision)), decision);
  const NetworkDecision none{.reason = "", .by = "n3"};
  EXPECT_EQ(decode_decision(encode(none)), none);
}

TEST(NetworkNotes, WhatIsCutOrTooLongIsAnError) {
  const Bytes note = encode(NodeNote{two_networks(1).candidates[0].at});
  const Bytes decision = encode(NetworkDecision{.reason = "x", .by = "n0"});
  for (std::size_t size = 0; size < note.size(); ++size)
    EXPECT_THROW(decode_note(std::span{note}.first(size)), Error) << size;
  for (std::size_t size = 0; size < decision.size(); ++size)
    EXPECT_THROW(decode_decision(std::span{decision}.first(size)), Error) << size;
  Bytes longer = note;
  longer.push_back(std::byte{});
  EXPECT_THROW(decode_note(longer), Error);
  EXPECT_THROW(decode_note(encode(NodeNote(7, two_networks(1).candidates[0].at))), Error) << "more than a node names";
}

}  // namespace
}  // namespace ddp::srun_plugin
