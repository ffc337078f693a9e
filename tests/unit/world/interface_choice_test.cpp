// Which network interface is chosen, and why.
#include "world/interface_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

using base::Environment;
using testing::HasSubstr;

// 198.51.100.0/24 is TEST-NET-2 (RFC 5737): no route of this host leads from these
const std::vector<NetworkInterface> kHost{{.name = "lo", .address = "127.0.0.1", .loopback = true},
                                          {.name = "eth7", .address = "198.51.100.7", .loopback = false},
                                          {.name = "ib0", .address = "198.51.100.8", .loopback = false}};
const Environment kNothing{{}};

std::string chosen(const Environment& environment, const std::vector<std::string>& peers, bool single_node) {
  return choose_interface(environment, kHost, peers, single_node).name;
}

TEST(InterfaceChoice, TheUsersNameWins) {
  for (const bool single_node : {false, true}) {
    const auto choice =
        choose_interface(Environment{{{"DDP_SOCKET_IFNAME", "ib0"}}}, kHost, {"127.0.0.1"}, single_node);
    EXPECT_EQ(choice.name, "ib0");
    EXPECT_EQ(choice.address, "198.51.100.8");
    EXPECT_THAT(choice.reason, HasSubstr("DDP_SOCKET_IFNAME"));
  }
  EXPECT_EQ(chosen(Environment{{{"GLOO_SOCKET_IFNAME", "ib0"}}}, {}, true), "ib0");
  EXPECT_EQ(chosen(Environment{{{"GLOO_SOCKET_IFNAME", "ib0"}, {"DDP_SOCKET_IFNAME", "eth7"}}}, {}, true), "eth7");
  EXPECT_EQ(chosen(Environment{{{"GLOO_SOCKET_IFNAME", "ib0"}, {"DDP_SOCKET_IFNAME", ""}}}, {}, true), "ib0");
}

TEST(InterfaceChoice, AnUnknownNameListsThoseThereAre) {
  for (const std::string variable : {"DDP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const auto error = test::error_of([&] { choose_interface(Environment{{{variable, "eth"}}}, kHost, {}, true); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error->what(), HasSubstr(variable + "=eth"));
    EXPECT_THAT(error->what(), HasSubstr("lo (127.0.0.1), eth7 (198.51.100.7), ib0 (198.51.100.8)"));
  }
}

TEST(InterfaceChoice, ASingleNodeStaysOnLoopback) {
  const auto choice = choose_interface(kNothing, kHost, {}, true);
  EXPECT_EQ(choice.name, "lo");
  EXPECT_EQ(choice.address, "127.0.0.1");
  const std::vector<NetworkInterface> without(kHost.begin() + 1, kHost.end());
  EXPECT_EQ(choose_interface(kNothing, without, {}, true).name, "eth7");
}

TEST(InterfaceChoice, SeveralNodesNeverGetLoopbackWhileThereIsAnother) {
  EXPECT_EQ(chosen(kNothing, {}, false), "eth7");
  EXPECT_EQ(chosen(kNothing, {"127.0.0.1"}, false), "eth7") << "a peer's name may resolve to loopback (Debian's hosts)";
  EXPECT_EQ(chosen(kNothing, {"no such host.invalid", "localhost"}, false), "eth7");
}

TEST(InterfaceChoice, OnlyLoopbackIsBetterThanNothing) {
  EXPECT_EQ(choose_interface(kNothing, {kHost[0]}, {"127.0.0.1"}, false).name, "lo");
  const auto error = test::error_of([] { choose_interface(kNothing, {}, {}, false); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::unavailable);
}

TEST(InterfaceChoice, ThisHostHasLoopbackAndDistinctNames) {
  const auto interfaces = list_interfaces();
  EXPECT_TRUE(std::any_of(interfaces.begin(), interfaces.end(), [](const auto& each) { return each.loopback; }));
  std::vector<std::string> names;
  for (const NetworkInterface& each : interfaces) {
    EXPECT_FALSE(each.address.empty()) << each.name;
    names.push_back(each.name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(InterfaceChoice, TheRouteToAPeerDecides) {
  // packets to an address of this host leave from that same address, so this host can stand for its own peer
  auto interfaces = list_interfaces();
  const auto real = std::find_if(interfaces.begin(), interfaces.end(), [](const auto& each) {
    return !each.loopback && each.address.find(':') == std::string::npos;
  });
  if (real == interfaces.end()) GTEST_SKIP() << "this host has no interface but loopback";
  const NetworkInterface wanted = *real;
  interfaces.insert(interfaces.begin(), kHost[1]);
  const auto choice = choose_interface(kNothing, interfaces, {"no such host.invalid", wanted.address}, false);
  EXPECT_EQ(choice.name, wanted.name);
  EXPECT_EQ(choice.address, wanted.address);
  EXPECT_THAT(choice.reason, HasSubstr("it routes to " + wanted.address));
}

}  // namespace
}  // namespace ddp::world
