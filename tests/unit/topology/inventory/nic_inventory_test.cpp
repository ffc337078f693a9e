// Which NICs a machine has, and which of them ranks can use: port states, bonds, virtual functions, fabrics.
#include "topology/inventory/nic_inventory.hpp"

namespace ddp::topology {
namespace {

PciAddress at(int bus, int function = 0) {
  return {
      .domain = 0, .bus = static_cast<std::uint8_t>(bus), .device = 0, .function = static_cast<std::uint8_t>(function)};
}

NicFunction function(PciAddress pci, std::string interface, std::string rdma = {}) {
  NicFunction made;
  made.pci = pci;
  made.class_id = 0x0200;
  made.vendor_id = 0x15b3;
  made.model = "adapter";
  made.pci_gbps = 252;
  made.interface = std::move(interface);
  made.rdma_device = std::move(rdma);
  made.locality = {.package = 0, .numa_node = pci.bus / 16, .bridges = {0, pci.bus}};
  return made;
}

InterfaceFact interface(std::string name, InterfaceKind kind = InterfaceKind::hardware, bool up = true) {
  InterfaceFact fact;
  fact.interface.name = std::move(name);
  fact.interface.kind = kind;
  fact.interface.up = up;
  fact.interface.addresses = {{.address = "10.0.0.1", .prefix_length = 24, .ipv6 = false}};
  return fact;
}

RdmaFact rdma(std::string name, std::vector<std::string> states) {
  RdmaFact fact{.name = std::move(name)};
  for (auto& state : states) {
    fact.ports.push_back({.number = static_cast<int>(fact.ports.size()) + 1,
                          .state = std::move(state),
                          .link_layer = "InfiniBand",
                          .rate_gbps = 400});
  }
  return fact;
}

std::vector<std::string> usable(const std::vector<Nic>& nics) {
  std::vector<std::string> names;
  for (const Nic& nic : nics) {
    if (nic.usable) names.push_back(nic.name());
  }
  return names;
}

std::string reason(const std::vector<Nic>& nics, std::string_view name) {
  for (const Nic& nic : nics) {
    if (nic.name() == name) return nic.unusable_reason;
  }
  return "no such NIC";
}

TEST(NicInventory, WithoutFactsEverythingCounts) {
  const auto nics = make_nics({function(at(2), "ib1", "mlx5_1"), function(at(1), "ib0", "mlx5_0")}, {});
  EXPECT_THAT(usable(nics), ElementsAre("ib0 (mlx5_0)", "ib1 (mlx5_1)")) << "by PCI address";
  EXPECT_EQ(nics[0].rate_gbps, 252) << "the PCI link is all that is known";
  EXPECT_EQ(nics[1].index, 1);
}

TEST(NicInventory, OnePortThatIsActiveIsEnough) {
  LiveFacts facts;
  facts.rdma = {rdma("mlx5_0", {"DOWN", "ACTIVE"}), rdma("mlx5_1", {"DOWN", "INIT"})};
  facts.interfaces = {interface("ib0"), interface("ib1")};
  const auto nics = make_nics({function(at(1), "ib0", "mlx5_0"), function(at(2), "ib1", "mlx5_1")}, facts);
  EXPECT_THAT(usable(nics), ElementsAre("ib0 (mlx5_0)"));
  EXPECT_EQ(nics[0].rate_gbps, 400);
  EXPECT_EQ(reason(nics, "ib1 (mlx5_1)"), "port 1 is DOWN, port 2 is INIT");
}

TEST(NicInventory, EthernetNeedsALinkAndAnAddress) {
  LiveFacts facts;
  facts.interfaces = {interface("eth0"), interface("eth1", InterfaceKind::hardware, false), interface("eth2")};
  facts.interfaces[2].interface.addresses.clear();
  const auto nics = make_nics(
      {function(at(1), "eth0"), function(at(2), "eth1"), function(at(3), "eth2"), function(at(4), "")}, facts);
  EXPECT_THAT(usable(nics), ElementsAre("eth0"));
  EXPECT_EQ(reason(nics, "eth1"), "it is down");
  EXPECT_EQ(reason(nics, "eth2"), "it has no address");
  EXPECT_THAT(reason(nics, "0000:04:00.0"), HasSubstr("no network interface"));
}

TEST(NicInventory, ABondIsOneNicWithTheRdmaDeviceOfItsSlaves) {
  LiveFacts facts;
  facts.interfaces = {interface("eth0", InterfaceKind::bond_slave), interface("eth1", InterfaceKind::bond_slave),
                      interface("bond0", InterfaceKind::bond)};
  for (int i = 0; i < 2; ++i) facts.interfaces[static_cast<std::size_t>(i)].interface.bond = "bond0";
  facts.interfaces[2].interface.slaves = {"eth0", "eth1"};
  facts.rdma = {rdma("mlx5_bond_0", {"ACTIVE"})};
  facts.rdma[0].ports[0].link_layer = "Ethernet";
  const auto nics = make_nics({function(at(1, 0), "eth0", "mlx5_bond_0"), function(at(1, 1), "eth1")}, facts);
  EXPECT_THAT(usable(nics), ElementsAre("bond0 (mlx5_bond_0)"));
  const auto bond = std::find_if(nics.begin(), nics.end(), [](const Nic& nic) { return nic.usable; });
  EXPECT_THAT(bond->bonded, ElementsAre("eth0", "eth1"));
  EXPECT_TRUE(bond->fabric);
  EXPECT_EQ(bond->rate_gbps, 652) << "400 of the port, and the PCI link of the other";
  EXPECT_THAT(bond->locality.bridges, ElementsAre(0, 1));
  EXPECT_EQ(reason(nics, "eth1"), "it is part of bond0");
}

TEST(NicInventory, ABondOfIpoibInterfacesLeavesTheirRdmaDevicesApart) {
  LiveFacts facts;
  facts.interfaces = {interface("ib0", InterfaceKind::bond_slave), interface("ib1", InterfaceKind::bond_slave),
                      interface("bond0", InterfaceKind::bond)};
  facts.interfaces[2].interface.slaves = {"ib0", "ib1"};
  facts.rdma = {rdma("mlx5_0", {"ACTIVE"}), rdma("mlx5_1", {"ACTIVE"})};
  const auto nics = make_nics({function(at(1), "ib0", "mlx5_0"), function(at(2), "ib1", "mlx5_1")}, facts);
  EXPECT_THAT(usable(nics), testing::UnorderedElementsAre("ib0 (mlx5_0)", "ib1 (mlx5_1)", "bond0"));
}

TEST(NicInventory, ABondOverTwoNumaNodesIsNearToNeither) {
  LiveFacts facts;
  facts.interfaces = {interface("eth0", InterfaceKind::bond_slave), interface("eth1", InterfaceKind::bond_slave),
                      interface("bond0", InterfaceKind::bond)};
  facts.interfaces[2].interface.slaves = {"eth0", "eth1"};
  const auto nics = make_nics({function(at(1), "eth0"), function(at(17), "eth1")}, facts);
  const auto bond = std::find_if(nics.begin(), nics.end(), [](const Nic& nic) { return nic.usable; });
  ASSERT_NE(bond, nics.end());
  EXPECT_EQ(bond->locality.numa_node, -1);
  EXPECT_EQ(bond->locality.package, 0);
  EXPECT_THAT(bond->locality.bridges, ElementsAre(0));
}

TEST(NicInventory, VirtualFunctionsCountOnlyWhereTheyAreAllThereIs) {
  LiveFacts facts;
  facts.virtual_functions = {at(1, 1), at(1, 2)};
  const auto vf = [](int number) { return function(at(1, number), "", "mlx5_" + std::to_string(number)); };
  const auto on_host = make_nics({vf(0), vf(1), vf(2)}, facts);
  EXPECT_THAT(usable(on_host), ElementsAre("mlx5_0"));
  EXPECT_TRUE(on_host[1].virtual_function);
  EXPECT_THAT(reason(on_host, "mlx5_1"), HasSubstr("virtual function"));
  EXPECT_THAT(usable(make_nics({vf(1), vf(2)}, facts)), ElementsAre("mlx5_1", "mlx5_2")) << "in a container";
  facts.rdma = {rdma("mlx5_0", {"DOWN"})};
  EXPECT_THAT(usable(make_nics({vf(0), vf(1)}, facts)), ElementsAre("mlx5_1")) << "the adapter itself is down";
}

TEST(NicInventory, KnowsFabrics) {
  const auto fabric = [](unsigned class_id, unsigned vendor, unsigned device, std::string rdma_device) {
    NicFunction made = function(at(1), "x", std::move(rdma_device));
    made.class_id = class_id;
    made.vendor_id = vendor;
    made.device_id = device;
    return make_nics({made}, {}).front().fabric;
  };
  EXPECT_TRUE(fabric(0x0200, 0x15b3, 0x1021, "mlx5_0")) << "RoCE";
  EXPECT_TRUE(fabric(0x0207, 0x15b3, 0x1021, "")) << "InfiniBand without a driver";
  EXPECT_TRUE(fabric(0x0200, 0x17db, 0x0501, "")) << "Slingshot";
  EXPECT_TRUE(fabric(0x0200, 0x1d0f, 0xefa1, "")) << "EFA";
  EXPECT_FALSE(fabric(0x0200, 0x1d0f, 0xec20, "")) << "ENA";
  EXPECT_FALSE(fabric(0x0200, 0x8086, 0x1521, "")) << "Ethernet";
}

TEST(NicInventory, NamesThatOnlyTheKernelKnowsAreAdded) {
  LiveFacts facts;
  facts.interfaces = {interface("ib0")};
  facts.interfaces[0].pci = at(1);
  facts.rdma = {rdma("mlx5_0", {"ACTIVE"})};
  facts.rdma[0].pci = at(1);
  EXPECT_THAT(usable(make_nics({function(at(1), "")}, facts)), ElementsAre("ib0 (mlx5_0)"));
}

}  // namespace
}  // namespace ddp::topology
