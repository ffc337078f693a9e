#include "topology/inventory/network_facts.hpp"

#include <net/if.h>

#include "unit/topology/fake_root.hpp"

namespace ddp::topology {
namespace {

constexpr int kEther = 1;
constexpr int kInfiniband = 32;
constexpr int kTunnel6 = 769;
constexpr int kLoopback = 772;
constexpr int kNone = 65534;
constexpr unsigned kUp = IFF_UP | IFF_RUNNING;

InterfaceAddress v4(const char* address, int prefix = 24) { return {address, prefix, false}; }
InterfaceAddress v6(const char* address, int prefix = 64) { return {address, prefix, true}; }

struct NetworkFacts : testing::Test {
  std::filesystem::path hardware(const std::string& name, int index, const std::string& address) const {
    return root.interface(name, index, kEther, root.pci(address, "0x020000", "0x15b3", "mlx5_core"));
  }
  std::filesystem::path with_devtype(const std::string& name, int index, const std::string& devtype) const {
    const auto folder = root.interface(name, index, kEther);
    root.write(folder / "uevent", "DEVTYPE=" + devtype + "\nINTERFACE=" + name);
    return folder;
  }
  std::filesystem::path bridge(const std::string& name, int index) const {
    const auto folder = with_devtype(name, index, "bridge");
    root.folder(folder / "bridge");
    root.folder(folder / "brif");
    return folder;
  }
  void add_port(const std::filesystem::path& above, const std::filesystem::path& port) const {
    root.link(above / "brif" / port.filename(), port);
    root.link(above / ("lower_" + port.filename().string()), port);
    root.link(port / "master", above);
  }
  std::filesystem::path bond(const std::string& name, int index,
                             const std::vector<std::filesystem::path>& slaves) const {
    const auto folder = with_devtype(name, index, "bond");
    std::string names;
    for (const auto& slave : slaves) {
      names += slave.filename().string() + " ";
      root.folder(slave / "bonding_slave");
      root.link(slave / "master", folder);
      root.link(folder / ("lower_" + slave.filename().string()), slave);
    }
    root.write(folder / "bonding/slaves", names);
    return folder;
  }
  std::filesystem::path veth(const std::string& name, int index, int peer) const {
    const auto folder = root.interface(name, index, kEther);
    root.write(folder / "iflink", std::to_string(peer));
    return folder;
  }
  InterfaceFact read(const std::string& name, std::vector<InterfaceAddress> addresses = {},
                     unsigned flags = kUp) const {
    const auto facts = read_interfaces(root.sys(), {{name, flags, std::move(addresses)}});
    EXPECT_EQ(facts.size(), 1U);
    return facts.at(0);
  }
  InterfaceKind kind(const std::string& name, std::vector<InterfaceAddress> addresses = {}) const {
    return read(name, std::move(addresses)).interface.kind;
  }

  FakeRoot root;
};

TEST_F(NetworkFacts, EthernetAdapterHasKindRateAddressAndPlace) {
  root.write(hardware("eth0", 2, "0000:3b:00.0") / "speed", "25000");
  const auto fact = read("eth0", {v4("10.1.2.3", 16)});
  EXPECT_EQ(fact.interface.name, "eth0");
  EXPECT_EQ(fact.interface.kind, InterfaceKind::hardware);
  EXPECT_TRUE(fact.interface.up);
  EXPECT_DOUBLE_EQ(fact.interface.rate_gbps, 25);
  EXPECT_THAT(fact.interface.addresses, ElementsAre(v4("10.1.2.3", 16)));
  ASSERT_TRUE(fact.pci);
  EXPECT_EQ(fact.pci->to_string(), "0000:3b:00.0") << "not the bridge above it";
}

TEST_F(NetworkFacts, UpNeedsBothConfigurationAndCable) {
  hardware("eth0", 2, "0000:3b:00.0");
  EXPECT_TRUE(read("eth0", {}, IFF_UP | IFF_RUNNING).interface.up);
  EXPECT_FALSE(read("eth0", {}, IFF_UP).interface.up);
  EXPECT_FALSE(read("eth0", {}, IFF_RUNNING).interface.up);
}

TEST_F(NetworkFacts, UnknownSpeedIsZero) {
  const auto folder = hardware("eth0", 2, "0000:3b:00.0");
  EXPECT_EQ(read("eth0").interface.rate_gbps, 0) << "the file cannot be read";
  for (const char* text : {"-1", "4294967295", "0", "fast", ""}) {
    root.write(folder / "speed", text);
    EXPECT_EQ(read("eth0").interface.rate_gbps, 0) << text;
  }
}

TEST_F(NetworkFacts, LinkLocalAddressesAreLeftOutAndIpv4ComesFirst) {
  hardware("eth0", 2, "0000:3b:00.0");
  const auto fact = read("eth0", {v6("fe80::1"), v6("fd00::2"), v4("169.254.7.7", 16), v4("10.0.0.2"), v6("febf::1"),
                                  v4("10.0.0.1"), v6("2001:db8::1")});
  EXPECT_THAT(fact.interface.addresses, ElementsAre(v4("10.0.0.2"), v4("10.0.0.1"), v6("fd00::2"), v6("2001:db8::1")));
  EXPECT_THAT(read("eth0", {v6("fe80::1"), v4("169.254.7.7", 16)}).interface.addresses, IsEmpty());
}

TEST_F(NetworkFacts, InterfacesKeepTheirOrder) {
  hardware("ib1", 2, "0000:3b:00.0");
  hardware("eth0", 3, "0000:3c:00.0");
  const auto facts = read_interfaces(root.sys(), {{"ib1", kUp, {}}, {"eth0", kUp, {}}});
  ASSERT_EQ(facts.size(), 2U);
  EXPECT_EQ(facts[0].interface.name, "ib1");
  EXPECT_EQ(facts[1].interface.name, "eth0");
}

TEST_F(NetworkFacts, IpoverInfinibandIsHardware) {
  const auto device = root.pci("0000:3b:00.0", "0x020700", "0x15b3", "mlx5_core");
  root.write(root.interface("ib0", 5, kInfiniband, device) / "speed", "400000");
  const auto fact = read("ib0", {v4("10.9.0.1")});
  EXPECT_EQ(fact.interface.kind, InterfaceKind::hardware);
  EXPECT_DOUBLE_EQ(fact.interface.rate_gbps, 400);
  EXPECT_EQ(fact.pci, PciAddress::parse("0000:3b:00.0"));
}

TEST_F(NetworkFacts, VirtioAdapterIsPlacedWhereItsPciFunctionIs) {
  const auto device = root.pci("0000:00:03.0", "0x020000", "0x1af4", "virtio-pci");
  root.folder(device / "virtio2");
  root.interface("eth0", 4, kEther, device / "virtio2");
  const auto fact = read("eth0");
  EXPECT_EQ(fact.interface.kind, InterfaceKind::hardware);
  EXPECT_EQ(fact.pci, PciAddress::parse("0000:00:03.0"));
}

TEST_F(NetworkFacts, LoopbackAndTunnels) {
  root.interface("lo", 1, kLoopback);
  const auto tun = root.interface("tun0", 7, kNone);
  root.write(tun / "tun_flags", "0x1001");
  const auto tap = root.interface("vnet3", 8, kEther);
  EXPECT_EQ(kind("vnet3"), InterfaceKind::other);
  root.write(tap / "tun_flags", "0x1002");
  root.interface("ip6tnl0", 9, kTunnel6);
  root.interface("wg0", 10, kNone);
  with_devtype("vx1", 11, "vxlan");
  EXPECT_EQ(kind("lo", {v4("127.0.0.1", 8)}), InterfaceKind::loopback);
  for (const char* name : {"tun0", "vnet3", "ip6tnl0", "wg0", "vx1"})
    EXPECT_EQ(kind(name), InterfaceKind::tunnel) << name;
  EXPECT_FALSE(read("tun0").pci);
}

TEST_F(NetworkFacts, BondKnowsItsSlavesAndTheyKnowTheBond) {
  bond("bond0", 9, {hardware("eth3", 3, "0000:3b:00.1"), hardware("eth2", 2, "0000:3b:00.0")});
  const auto joined = read("bond0", {v4("10.0.0.1")});
  EXPECT_EQ(joined.interface.kind, InterfaceKind::bond);
  EXPECT_THAT(joined.interface.slaves, ElementsAre("eth2", "eth3"));
  EXPECT_FALSE(joined.pci);
  for (const char* name : {"eth2", "eth3"}) {
    const auto slave = read(name);
    EXPECT_EQ(slave.interface.kind, InterfaceKind::bond_slave);
    EXPECT_EQ(slave.interface.bond, "bond0");
    EXPECT_TRUE(slave.pci);
  }
  hardware("eth4", 4, "0000:3c:00.0");
  EXPECT_EQ(kind("eth4"), InterfaceKind::hardware);
  EXPECT_EQ(read("eth4").interface.bond, "");
}

TEST_F(NetworkFacts, VlanOnBondLiesOnTheBond) {
  const auto below = bond("bond0", 9, {hardware("eth2", 2, "0000:3b:00.0")});
  const auto vlan = with_devtype("bond0.100", 10, "vlan");
  root.write(vlan / "iflink", "9");
  root.link(vlan / "lower_bond0", below);
  const auto fact = read("bond0.100", {v4("10.0.0.1")});
  EXPECT_EQ(fact.interface.kind, InterfaceKind::vlan);
  EXPECT_THAT(fact.interface.slaves, ElementsAre("bond0"));
}

TEST_F(NetworkFacts, DockerBridgeWithContainersReachesOnlyThisHost) {
  const auto docker = bridge("docker0", 5);
  EXPECT_EQ(kind("docker0", {v4("172.17.0.1", 16)}), InterfaceKind::host_only) << "without containers";
  add_port(docker, veth("veth12ab", 7, 6));
  EXPECT_EQ(kind("docker0", {v4("172.17.0.1", 16)}), InterfaceKind::host_only);
  EXPECT_THAT(read("docker0").interface.slaves, ElementsAre("veth12ab"));
  EXPECT_EQ(kind("veth12ab"), InterfaceKind::host_only);
}

TEST_F(NetworkFacts, BridgeWithHardwareReachesOthers) {
  const auto br0 = bridge("br0", 5);
  add_port(br0, veth("veth1", 7, 6));
  EXPECT_EQ(kind("br0", {v4("10.0.0.1")}), InterfaceKind::host_only);
  add_port(br0, hardware("eth0", 2, "0000:3b:00.0"));
  EXPECT_EQ(kind("br0", {v4("10.0.0.1")}), InterfaceKind::bridge);
  EXPECT_THAT(read("br0").interface.slaves, ElementsAre("eth0", "veth1"));
}

TEST_F(NetworkFacts, BridgeReachesOthersByVlanOnBond) {
  const auto below = bond("bond0", 9, {hardware("eth2", 2, "0000:3b:00.0")});
  const auto vlan = with_devtype("bond0.7", 10, "vlan");
  const auto br0 = bridge("br0", 11);
  add_port(br0, vlan);
  EXPECT_EQ(kind("br0"), InterfaceKind::host_only) << "the VLAN lies on nothing yet";
  root.link(vlan / "lower_bond0", below);
  EXPECT_EQ(kind("br0"), InterfaceKind::bridge);
}

TEST_F(NetworkFacts, BridgesInACircleEnd) {
  const auto a = bridge("br1", 5);
  const auto b = bridge("br2", 6);
  root.link(a / "brif/br2", b);
  root.link(b / "brif/br1", a);
  EXPECT_EQ(kind("br1"), InterfaceKind::host_only);
}

TEST_F(NetworkFacts, RenamedVethIsToldByItsLink) {
  const auto uplink = veth("eth0", 2, 17);
  EXPECT_EQ(kind("eth0", {v4("10.77.0.2")}), InterfaceKind::other) << "the way out of a container";
  EXPECT_EQ(kind("eth0"), InterfaceKind::host_only) << "without an address, nobody can use it";
  EXPECT_EQ(kind("eth0", {v4("169.254.1.1", 16), v6("fe80::1")}), InterfaceKind::host_only);
  add_port(bridge("br9", 9), uplink);
  EXPECT_EQ(kind("eth0", {v4("10.77.0.2")}), InterfaceKind::host_only) << "the other end is a container";
}

TEST_F(NetworkFacts, VethByNameFollowsTheSameRule) {
  veth("veth0", 2, 17);
  EXPECT_EQ(kind("veth0", {v4("10.77.0.2")}), InterfaceKind::other);
  EXPECT_EQ(kind("veth0"), InterfaceKind::host_only);
}

TEST_F(NetworkFacts, MacvlanAndPlainVirtualInterfacesAreNoVeth) {
  const auto macvlan = with_devtype("eth1", 3, "macvlan");  // its lower interface is in another network namespace
  root.write(macvlan / "iflink", "2");
  root.interface("ifb0", 4, kEther);
  EXPECT_EQ(kind("eth1"), InterfaceKind::other);
  EXPECT_EQ(kind("ifb0"), InterfaceKind::other);
}

TEST_F(NetworkFacts, NamesOfContainerNetworks) {
  for (const char* name :
       {"docker0", "virbr0", "cni0", "flannel.1", "cali1234", "lxcbr0", "podman0", "dummy0", "br-0123456789ab"}) {
    EXPECT_EQ(kind(name, {v4("10.88.0.1")}), InterfaceKind::host_only) << name << ", not in /sys";
    root.interface(name, 20, kEther);
    EXPECT_EQ(kind(name, {v4("10.88.0.1")}), InterfaceKind::host_only) << name;
  }
  for (const char* name : {"br-ex", "br-0123456789abc", "br-0123456789ag", "eno1"}) {
    EXPECT_EQ(kind(name, {v4("10.88.0.1")}), InterfaceKind::other) << name;
  }
  hardware("dummy7", 30, "0000:3b:00.0");
  EXPECT_EQ(kind("dummy7"), InterfaceKind::hardware) << "a device says more than a name";
}

TEST_F(NetworkFacts, InterfaceThatSysDoesNotShowIsToldByItsFlags) {
  EXPECT_EQ(read("lo", {v4("127.0.0.1", 8)}, kUp | IFF_LOOPBACK).interface.kind, InterfaceKind::loopback);
  EXPECT_EQ(kind("net1", {v4("10.0.0.1")}), InterfaceKind::other);
  EXPECT_FALSE(read("net1").pci);
}

TEST_F(NetworkFacts, RdmaPortsWithStateLayerAndRate) {
  const auto device = root.pci("0000:3b:00.0", "0x020700", "0x15b3", "mlx5_core");
  const auto folder = device / "infiniband/mlx5_0";
  root.write(folder / "ports/1/state", "4: ACTIVE");
  root.write(folder / "ports/1/link_layer", "InfiniBand");
  root.write(folder / "ports/1/rate", "400 Gb/sec (4X NDR)");
  root.write(folder / "ports/2/state", "1: DOWN");
  root.write(folder / "ports/2/link_layer", "Ethernet");
  root.write(folder / "ports/2/rate", "2.5 Gb/sec (1X SDR)");
  root.folder(folder / "ports/10");
  root.folder(folder / "ports/none");
  root.link(folder / "device", device);
  root.link("sys/class/infiniband/mlx5_0", folder);
  root.folder("sys/class/infiniband/hfi1_0");

  const auto devices = read_rdma_devices(root.sys());
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].name, "hfi1_0");
  EXPECT_FALSE(devices[0].pci);
  EXPECT_THAT(devices[0].ports, IsEmpty());
  EXPECT_EQ(devices[1].name, "mlx5_0");
  EXPECT_EQ(devices[1].pci, PciAddress::parse("0000:3b:00.0"));
  ASSERT_EQ(devices[1].ports.size(), 3U);
  const auto& ports = devices[1].ports;
  EXPECT_EQ(ports[0].number, 1);
  EXPECT_EQ(ports[0].state, "ACTIVE");
  EXPECT_EQ(ports[0].link_layer, "InfiniBand");
  EXPECT_DOUBLE_EQ(ports[0].rate_gbps, 400);
  EXPECT_EQ(ports[1].number, 2);
  EXPECT_EQ(ports[1].state, "DOWN");
  EXPECT_EQ(ports[1].link_layer, "Ethernet");
  EXPECT_DOUBLE_EQ(ports[1].rate_gbps, 2.5);
  EXPECT_EQ(ports[2].number, 10);
  EXPECT_EQ(ports[2].state, "");
  EXPECT_EQ(ports[2].rate_gbps, 0);
}

TEST_F(NetworkFacts, RateThatIsNoNumberIsUnknown) {
  const std::string rate = "sys/class/infiniband/mlx5_0/ports/1/rate";
  for (const char* text : {"inf Gb/sec (4X)", "nan Gb/sec", "-5 Gb/sec", "400", "400 Mb/sec", "Gb/sec"}) {
    root.write(rate, text);
    EXPECT_EQ(read_rdma_devices(root.sys()).at(0).ports.at(0).rate_gbps, 0) << text;
  }
}

TEST_F(NetworkFacts, VirtualFunctionsAreThoseOfNetworkAdapters) {
  const auto physical = root.pci("0000:3b:00.0", "0x020000", "0x15b3", "mlx5_core");
  for (const char* address : {"0000:3b:00.3", "0000:3b:00.2"}) {
    root.link(root.pci(address, "0x020000", "0x15b3", "mlx5_core") / "physfn", physical);
  }
  const auto gpu = root.pci("0000:65:00.0", "0x030200", "0x10de", "nvidia");
  root.link(root.pci("0000:65:00.4", "0x030200", "0x10de", "nvidia") / "physfn", gpu);
  EXPECT_THAT(read_virtual_functions(root.sys()),
              ElementsAre(*PciAddress::parse("0000:3b:00.2"), *PciAddress::parse("0000:3b:00.3")));
}

TEST_F(NetworkFacts, EmptySysHasNothing) {
  EXPECT_THAT(read_interfaces(root.sys(), {}), IsEmpty());
  EXPECT_THAT(read_rdma_devices(root.sys()), IsEmpty());
  EXPECT_THAT(read_virtual_functions(root.sys()), IsEmpty());
}

TEST(ListRawInterfaces, HasLoopbackAndEveryInterfaceOnce) {
  const auto interfaces = list_raw_interfaces();
  const auto loopback =
      std::find_if(interfaces.begin(), interfaces.end(), [](const RawInterface& raw) { return raw.name == "lo"; });
  ASSERT_NE(loopback, interfaces.end());
  EXPECT_THAT(loopback->addresses, testing::Contains(v4("127.0.0.1", 8)));
  EXPECT_NE(loopback->flags & IFF_LOOPBACK, 0U);
  std::vector<std::string> names;
  for (const RawInterface& raw : interfaces) names.push_back(raw.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", status)) {
    if (!entry.is_directory()) continue;  // bonding_masters
    EXPECT_THAT(names, testing::Contains(entry.path().filename().string())) << "also those without an address";
  }
}

}  // namespace
}  // namespace ddp::topology
