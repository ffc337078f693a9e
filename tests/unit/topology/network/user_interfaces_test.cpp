#include "topology/network/user_interfaces.hpp"

namespace ddp::topology {
namespace {

TEST(IfnameList, NamesAreBeginningsOfNames) {
  EXPECT_TRUE(names_interface("eth1", "eth1"));
  EXPECT_TRUE(names_interface("eth1", "eth10"));
  EXPECT_TRUE(names_interface("bond0", "bond0.100"));
  EXPECT_FALSE(names_interface("eth1", "eth0"));
  EXPECT_FALSE(names_interface("eth10", "eth1"));
}

TEST(IfnameList, AnEqualsSignAsksForTheWholeName) {
  EXPECT_TRUE(names_interface("=eth1", "eth1"));
  EXPECT_FALSE(names_interface("=eth1", "eth10"));
  EXPECT_FALSE(names_interface("=eth10", "eth1"));
}

TEST(IfnameList, TheSignsHoldForTheWholeList) {
  EXPECT_TRUE(names_interface("=ib0,eth1", "eth1"));
  EXPECT_FALSE(names_interface("=ib0,eth1", "eth10"));
  EXPECT_FALSE(names_interface("^docker,lo", "lo"));
  EXPECT_TRUE(names_interface("^docker,lo", "eth0"));
  EXPECT_FALSE(names_interface("^=eth0,ib0", "ib0"));
  EXPECT_TRUE(names_interface("^=eth0,ib0", "ib01"));
}

TEST(IfnameList, AnEqualsSignBeforeTheCaretIsPartOfNothing) {
  // NCCL looks for '^' first: after "=" the caret is the first letter of a name
  EXPECT_FALSE(names_interface("=^eth0", "eth0"));
  EXPECT_FALSE(names_interface("=^eth0", "ib0"));
}

TEST(IfnameList, ListsOfOneCharacterAreIgnored) {
  EXPECT_TRUE(names_interface("", "eth0"));
  EXPECT_TRUE(names_interface("^", "eth0"));
  EXPECT_TRUE(names_interface("x", "eth0"));
  EXPECT_FALSE(names_interface("xy", "eth0"));
}

TEST(IfnameList, EmptyEntriesDoNotCount) {
  EXPECT_TRUE(names_interface(",,eth0,", "eth0"));
  EXPECT_FALSE(names_interface(",,eth0,", "ib0"));
  EXPECT_TRUE(names_interface(",,", "ib0")) << "no entry is no choice";
  EXPECT_FALSE(names_interface("^=", "ib0")) << "not (everything)";
}

TEST(IfnameList, PortsAreSkippedForInterfaces) { EXPECT_TRUE(names_interface("=eth0:7", "eth0")); }

TEST(IfnameList, OnlyTheFirstSixteenInterfacesCount) {
  std::string list = "=";
  for (int i = 0; i < 17; ++i) list += "eth" + std::to_string(i) + ",";
  EXPECT_TRUE(names_interface(list, "eth15"));
  EXPECT_FALSE(names_interface(list, "eth16"));
}

TEST(IfnameList, RdmaPorts) {
  EXPECT_TRUE(names_rdma_port("=mlx5_0:1,mlx5_3:2", "mlx5_3", 2));
  EXPECT_FALSE(names_rdma_port("=mlx5_0:1,mlx5_3:2", "mlx5_3", 1));
  EXPECT_TRUE(names_rdma_port("=mlx5_0", "mlx5_0", 2)) << "a name alone stands for all ports";
  EXPECT_FALSE(names_rdma_port("^=mlx5_0:1", "mlx5_0", 1));
  EXPECT_TRUE(names_rdma_port("^=mlx5_0:1", "mlx5_0", 2));
  EXPECT_TRUE(names_rdma_port("mlx5_1", "mlx5_10", 1));
  EXPECT_TRUE(names_rdma_port("=mlx5_0:1:2:0", "mlx5_0", 1)) << "rail and plane of NCCL 2.30";
  EXPECT_FALSE(names_rdma_port("=mlx5_0:", "mlx5_0", 1)) << "atoi of nothing is port 0";
}

TEST(IfnameList, AnUnknownPortMatchesAllPorts) {
  EXPECT_TRUE(names_rdma_port("=mlx5_0:2", "mlx5_0", -1));
  EXPECT_FALSE(names_rdma_port("=mlx5_1:2", "mlx5_0", -1));
}

TEST(IfnameList, AnEmptyListLetsEveryDevice) {
  EXPECT_TRUE(names_rdma_port("", "mlx5_0", 1));
  EXPECT_FALSE(names_rdma_port("^", "mlx5_0", 1));
}

TEST(IfnameList, OnlyTheFirstThirtyTwoDevicesCount) {
  std::string list = "=";
  for (int i = 0; i < 33; ++i) list += "mlx5_" + std::to_string(i) + ",";
  EXPECT_TRUE(names_rdma_port(list, "mlx5_31", 1));
  EXPECT_FALSE(names_rdma_port(list, "mlx5_32", 1));
}

}  // namespace

}  // namespace ddp::topology
