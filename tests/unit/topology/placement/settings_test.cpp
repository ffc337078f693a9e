#include "topology/placement/settings.hpp"

#include <ddp/error.hpp>

#include "unit/topology/settings_node.hpp"

namespace ddp::topology::settings_test {
namespace {

TEST(Settings, AreOrderedByName) {
  Node node;
  node.add_gpu(Vendor::nvidia);
  node.add_nic("mlx5_0");
  node.add_rank(0, 0);
  const auto settings = node.settings();
  EXPECT_GE(settings.size(), 6U);
  EXPECT_TRUE(std::is_sorted(settings.begin(), settings.end(), [](auto& a, auto& b) { return a.name < b.name; }));
}

TEST(Settings, AnUnknownRankIsAnError) {
  Node node;
  node.add_rank();
  EXPECT_THROW(node.settings(1), Error);
}

// ---- sockets

TEST(Settings, SocketsUseTheChosenInterfaceExactly) {
  Node node;
  node.add_rank();
  EXPECT_EQ(value_of(node.settings(), "NCCL_SOCKET_IFNAME"), "=ib0");
  EXPECT_EQ(value_of(node.settings(), "GLOO_SOCKET_IFNAME"), "ib0");
  EXPECT_EQ(value_of(node.settings(), "TP_SOCKET_IFNAME"), "ib0");
  EXPECT_THAT(find(node.settings(), "NCCL_SOCKET_IFNAME")->reason, HasSubstr("it routes to the other nodes"));
  node.options.interface.name.clear();
  EXPECT_EQ(value_of(node.settings(), "NCCL_SOCKET_IFNAME"), "-");
  EXPECT_EQ(value_of(node.settings(), "GLOO_SOCKET_IFNAME"), "-");
  EXPECT_EQ(value_of(node.settings(), "TP_SOCKET_IFNAME"), "-");
}

TEST(Settings, AUsersValueIsKeptEvenIfItIsEmpty) {
  Node node;
  node.add_rank();
  node.environment = {
      {"NCCL_SOCKET_IFNAME", ""}, {"OMP_NUM_THREADS", ""}, {"GLOO_SOCKET_IFNAME", ""}, {"TP_SOCKET_IFNAME", ""}};
  for (const auto& [name, value] : node.environment) {
    EXPECT_EQ(value_of(node.settings(), name), "(user) ") << name;
    EXPECT_EQ(conflict(node, name), "") << name;
  }
}

TEST(Settings, NcclsInterfaceListMustLetTheChosenOne) {
  Node node;
  node.add_rank();
  for (const char* fine : {"ib", "=ib0", "^docker,lo", "eth0,ib0"}) {
    node.environment["NCCL_SOCKET_IFNAME"] = fine;
    EXPECT_EQ(conflict(node, "NCCL_SOCKET_IFNAME"), "") << fine;
  }
  for (const char* without : {"eth", "=eth0", "^ib"}) {
    node.environment["NCCL_SOCKET_IFNAME"] = without;
    EXPECT_THAT(conflict(node, "NCCL_SOCKET_IFNAME"), HasSubstr("will not use ib0")) << without;
  }
  for (const char* nothing : {"hsn", "=ib", "^eth,ib"}) {
    node.environment["NCCL_SOCKET_IFNAME"] = nothing;
    EXPECT_THAT(conflict(node, "NCCL_SOCKET_IFNAME"), HasSubstr("none of this machine's interfaces (eth0, ib0)"));
  }
  node.parts.interfaces.clear();  // nothing is known, and nothing is said
  node.options.interface.name.clear();
  EXPECT_EQ(conflict(node, "NCCL_SOCKET_IFNAME"), "");
}

TEST(Settings, TorchsInterfaceMustBeTheChosenOne) {
  Node node;
  node.add_rank();
  node.environment["GLOO_SOCKET_IFNAME"] = "ib0";
  EXPECT_EQ(conflict(node, "GLOO_SOCKET_IFNAME"), "");
  node.environment["GLOO_SOCKET_IFNAME"] = "eth0";
  EXPECT_THAT(conflict(node, "GLOO_SOCKET_IFNAME"), HasSubstr("not ib0"));
}

// ---- RDMA

TEST(Settings, RdmaDevicesAreTheSameForAllRanks) {
  Node node;
  node.add_nic("mlx5_3");
  node.add_nic("mlx5_0");
  node.add_rank(-1, 0);
  node.add_rank(-1, 1);
  EXPECT_EQ(value_of(node.settings(0), "NCCL_IB_HCA"), "=mlx5_3:1,mlx5_0:1");
  EXPECT_EQ(value_of(node.settings(1), "NCCL_IB_HCA"), "=mlx5_3:1,mlx5_0:1");
  EXPECT_EQ(value_of(node.settings(0), "UCX_NET_DEVICES"), "mlx5_3:1");
  EXPECT_EQ(value_of(node.settings(1), "UCX_NET_DEVICES"), "mlx5_0:1");
}

TEST(Settings, UcxUsesAllNicsOfARank) {
  Node node;
  node.add_nic("mlx5_0");
  node.add_nic("mlx5_1");
  node.add_nic("mlx5_2");
  node.add_rank().nics = {1, 0};
  EXPECT_EQ(value_of(node.settings(), "UCX_NET_DEVICES"), "mlx5_1:1,mlx5_0:1");
}

TEST(Settings, OnlyActivePortsOfUsableDevicesAreNamed) {
  Node node;
  node.add_nic("mlx5_0").ports.push_back({.number = 2, .state = "DOWN", .link_layer = "InfiniBand", .rate_gbps = 0});
  node.add_nic("mlx5_1", 400, "DOWN");
  node.add_nic("rdmap1", 400, "ACTIVE", "Unspecified");  // EFA: not for verbs
  Nic& slingshot = node.add_nic("", 200, "");
  slingshot.interface = "hsn0";
  node.add_rank(-1, 0);
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "=mlx5_0:1");
}

TEST(Settings, PortsOfUnknownStateAreNamedAll) {
  Node node;
  Nic& nic = node.add_nic("mlx5_0", 400, "");
  nic.ports = {{.number = 1, .state = "", .link_layer = "", .rate_gbps = 0},
               {.number = 2, .state = "", .link_layer = "", .rate_gbps = 0}};
  node.add_nic("mlx5_1", 400, "");
  node.add_rank(-1, 1);
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "=mlx5_0:1,mlx5_0:2,mlx5_1");
  EXPECT_EQ(value_of(node.settings(), "UCX_NET_DEVICES"), "mlx5_1:1") << "UCX knows no device without a port";
}

TEST(Settings, DevicesForOtherUsesAreLeftOut) {
  Node node;
  node.add_nic("mlx5_0", 400);
  node.add_nic("mlx5_1", 200);
  node.add_nic("mlx5_2", 25);
  node.add_nic("mlx5_3", 400, "ACTIVE", "Ethernet");
  node.add_rank(-1, 0);
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "=mlx5_0:1,mlx5_1:1");
  EXPECT_THAT(find(node.settings(), "NCCL_IB_HCA")->reason, HasSubstr("mlx5_3 is Ethernet"));
}

TEST(Settings, NcclReadsNoMoreThan32Devices) {
  Node node;
  for (int i = 0; i < 40; ++i) node.add_nic("mlx5_" + std::to_string(i));
  node.add_rank(-1, 39);
  const std::string value = value_of(node.settings(), "NCCL_IB_HCA");
  EXPECT_EQ(std::count(value.begin(), value.end(), ','), 31);
  EXPECT_TRUE(value.ends_with(",mlx5_39:1")) << "the rank's own is among them: " << value;
}

TEST(Settings, WithoutRdmaUcxUsesTheInterface) {
  Node node;
  Nic& nic = node.add_nic("", 10, "");
  nic.interface = "eth0";
  nic.fabric = false;
  node.add_rank(-1, 0);
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "-");
  EXPECT_EQ(value_of(node.settings(), "UCX_NET_DEVICES"), "eth0");
  node.parts.nics[0].interface = "nic0";  // as in a file that knows no names
  EXPECT_EQ(value_of(node.settings(), "UCX_NET_DEVICES"), "-");
}

TEST(Settings, ListsThatNameNoDeviceAreReported) {
  Node node;
  node.add_nic("mlx5_0");
  node.add_rank(-1, 0);
  for (const char* fine : {"mlx5", "=mlx5_0:1", "^mlx5_1", ""}) {
    node.environment["NCCL_IB_HCA"] = fine;
    EXPECT_EQ(conflict(node, "NCCL_IB_HCA"), "") << fine;
  }
  for (const char* wrong : {"mlx4", "=mlx5_0:2", "^mlx5"}) {
    node.environment["NCCL_IB_HCA"] = wrong;
    EXPECT_THAT(conflict(node, "NCCL_IB_HCA"), HasSubstr("none of this machine's RDMA devices (mlx5_0)")) << wrong;
  }
  for (const char* fine : {"mlx5_0:1", "eth0", "all", "mlx4_0:1,mlx5_0:1", "^mlx4_0", "mlx*", ""}) {
    node.environment["UCX_NET_DEVICES"] = fine;
    EXPECT_EQ(conflict(node, "UCX_NET_DEVICES"), "") << fine;
  }
  node.environment["UCX_NET_DEVICES"] = "mlx4_0:1,ib7";
  EXPECT_THAT(conflict(node, "UCX_NET_DEVICES"), HasSubstr("eth0, ib0, mlx5_0"));
  node.parts.nics.clear();
  node.placements[0].nics.clear();
  node.environment["NCCL_IB_HCA"] = "mlx5";
  EXPECT_THAT(conflict(node, "NCCL_IB_HCA"), HasSubstr("no RDMA device"));
}

// ---- OpenMP

TEST(Settings, ThreadsFillTheCoresOfARank) {
  Node node;
  node.add_rank().num_cores = 6;
  EXPECT_EQ(value_of(node.settings(), "OMP_NUM_THREADS"), "6");
}

TEST(Settings, ThreadsStayWithinACgroupsQuota) {
  Node node;
  Placement& rank = node.add_rank();
  rank.num_cores = 6;
  rank.cpus = CpuSet::parse("0-5,8-13");
  for (const auto& [processors, threads] :
       {std::pair{2.0, "2"}, std::pair{2.9, "2"}, std::pair{0.2, "1"}, std::pair{6.0, "6"}, std::pair{64.0, "6"}}) {
    node.options.processors = processors;
    EXPECT_EQ(value_of(node.settings(), "OMP_NUM_THREADS"), threads) << processors;
  }
  node.options.processors = 1.5;
  EXPECT_THAT(find(node.settings(), "OMP_NUM_THREADS")->reason, HasSubstr("the time of 1.5 processors"));
  node.environment["OMP_NUM_THREADS"] = "4";
  EXPECT_THAT(conflict(node, "OMP_NUM_THREADS"), HasSubstr("the time of 1.5 processors only"));
  node.environment["OMP_NUM_THREADS"] = "1";
  EXPECT_EQ(conflict(node, "OMP_NUM_THREADS"), "");
}

TEST(Settings, WhatAFileOfNcclHasIsLeftToIt) {
  Node node;
  node.add_nic("mlx5_0");
  node.add_rank(-1, 0);
  EXPECT_EQ(value_of(node.settings(), "NCCL_SOCKET_IFNAME"), "=ib0");
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "=mlx5_0:1");
  node.options.nccl_conf = {
      {.path = "/home/me/.nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "eth"}}},
      {.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}, {"NCCL_IB_HCA", "mlx5"}}}};
  EXPECT_EQ(value_of(node.settings(), "NCCL_SOCKET_IFNAME"), "(user) eth");
  EXPECT_EQ(find(node.settings(), "NCCL_SOCKET_IFNAME")->reason, "/home/me/.nccl.conf has it");
  EXPECT_EQ(find(node.settings(), "NCCL_SOCKET_IFNAME")->conflict, "");
  EXPECT_EQ(value_of(node.settings(), "NCCL_IB_HCA"), "(user) mlx5");
  EXPECT_EQ(value_of(node.settings(), "GLOO_SOCKET_IFNAME"), "ib0") << "gloo reads no such file";
  node.environment["NCCL_SOCKET_IFNAME"] = "ib0";
  EXPECT_EQ(find(node.settings(), "NCCL_SOCKET_IFNAME")->reason, "the environment has it");
  node.environment.clear();
  node.options.nccl_conf[0].settings = {{"NCCL_SOCKET_IFNAME", "wlan"}};
  EXPECT_THAT(find(node.settings(), "NCCL_SOCKET_IFNAME")->conflict,
              AllOf(HasSubstr("leaves none"), HasSubstr(".nccl.conf has it")));
}

TEST(Settings, OfAFileOnlyWhatWouldBeSetMatters) {
  const auto files = placement_conf(
      {{.path = "a", .digest = 0, .settings = {{"NCCL_DEBUG", "INFO"}}},
       {.path = "b", .digest = 0, .settings = {{"NCCL_DEBUG", "INFO"}, {"NCCL_IB_HCA", "x"}, {"NCCL_PSK", "y"}}}});
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].path, "b");
  EXPECT_EQ(files[0].settings.size(), 1U);
}

TEST(Settings, RanksShareTheThreadsOfSharedCores) {
  Node node;
  for (int i = 0; i < 3; ++i) {
    Placement& rank = node.add_rank();
    rank.cpus = CpuSet::parse("0-15");
    rank.num_cores = 8;
  }
  EXPECT_EQ(value_of(node.settings(1), "OMP_NUM_THREADS"), "2");
  for (int i = 0; i < 9; ++i) {
    Placement& rank = node.add_rank();
    rank.cpus = CpuSet::parse("0");
    rank.num_cores = 1;
  }
  EXPECT_EQ(value_of(node.settings(11), "OMP_NUM_THREADS"), "1") << "never less";
}

TEST(Settings, OpenMpMayNotNarrowTheMaskOfABoundRank) {
  Node node;
  node.add_rank();
  EXPECT_EQ(value_of(node.settings(), "OMP_PROC_BIND"), "false");
  EXPECT_EQ(value_of(node.settings(), "OMP_PLACES"), "-");
  node.options.bound = false;
  EXPECT_EQ(value_of(node.settings(), "OMP_PROC_BIND"), "-");
  node.options.bound = true;
  node.environment["OMP_PLACES"] = "cores";  // the user wants OpenMP to bind
  EXPECT_EQ(value_of(node.settings(), "OMP_PROC_BIND"), "-");
  EXPECT_EQ(conflict(node, "OMP_PLACES"), "");
}

TEST(Settings, OpenMpsBindingConflictsWithSharedCores) {
  Node node;
  node.add_rank();
  node.add_rank().cpus = CpuSet::parse("0");
  node.environment["OMP_PROC_BIND"] = "close";
  EXPECT_THAT(conflict(node, "OMP_PROC_BIND"), HasSubstr("same ones"));
  node.environment["OMP_PROC_BIND"] = "false";
  node.environment["OMP_PLACES"] = "cores";
  EXPECT_EQ(conflict(node, "OMP_PROC_BIND"), "");
  EXPECT_EQ(conflict(node, "OMP_PLACES"), "") << "without binding, places mean nothing";
}

TEST(Settings, MoreThreadsThanHardwareThreadsAreReported) {
  Node node;
  node.add_rank();  // one core, two hardware threads
  for (const char* fine : {"1", "2", "2,8"}) {
    node.environment["OMP_NUM_THREADS"] = fine;
    EXPECT_EQ(conflict(node, "OMP_NUM_THREADS"), "") << fine;
  }
  node.environment["OMP_NUM_THREADS"] = "3";
  EXPECT_THAT(conflict(node, "OMP_NUM_THREADS"), HasSubstr("only 2 hardware threads"));
  for (const char* wrong : {"many", "0", "-1", "2x", "9999999999"}) {
    node.environment["OMP_NUM_THREADS"] = wrong;
    EXPECT_THAT(conflict(node, "OMP_NUM_THREADS"), HasSubstr("not a number of threads")) << wrong;
  }
}

}  // namespace
}  // namespace ddp::topology::settings_test
