// PCI addresses as tools write them, and distances by bridges and NUMA nodes.
#include <ddp/devices.hpp>

namespace ddp {
namespace {

TEST(PciAddress, ReadsWhatToolsWrite) {
  EXPECT_EQ(PciAddress::parse("0000:3b:00.0")->to_string(), "0000:3b:00.0");
  EXPECT_EQ(PciAddress::parse("3b:1f.7")->to_string(), "0000:3b:1f.7");
  EXPECT_EQ(PciAddress::parse("00000000:3B:00.0")->to_string(), "0000:3b:00.0") << "NVML";
  EXPECT_EQ(PciAddress::parse("10000:02:03.4")->to_string(), "10000:02:03.4") << "Intel VMD";
  for (const std::string text :
       {"", "3b", "3b:00", "0000:3b:00", "0000:3b:20.0", "0000:3b:00.8", "0000:3bb:00.0", "x:3b:00.0", "0000:3b:00.0 ",
        "0000:3b:00.", "123456789:3b:00.0", "1:2:3:4.5", ":3b:00.0"}) {
    EXPECT_FALSE(PciAddress::parse(text)) << text;
  }
}

TEST(PciAddress, OrdersByDomainBusDeviceFunction) {
  EXPECT_LT(*PciAddress::parse("0000:ff:1f.7"), *PciAddress::parse("0001:00:00.0"));
  EXPECT_LT(*PciAddress::parse("0000:03:00.1"), *PciAddress::parse("0000:10:00.0"));
}

// Bridges: 0 and 1 are host bridges. Under 0 are the root ports 10 and 11; under 10 a switch with upstream port 20 and
// downstream ports 21, 22; behind 22 a second switch with upstream port 30 and downstream ports 31, 32.
Locality place(int package, int numa_node, std::vector<int> bridges) {
  return {.package = package, .numa_node = numa_node, .bridges = std::move(bridges)};
}
std::string word(const Locality& a, const Locality& b) {
  EXPECT_EQ(distance(a, b), distance(b, a));
  return std::string(to_string(distance(a, b).path));
}

const Locality kFirst = place(0, 0, {0, 10, 20, 21});
const Locality kBesideFirst = place(0, 0, {0, 10, 20, 22});
const Locality kBehindSecondSwitch = place(0, 0, {0, 10, 20, 22, 30, 31});
const Locality kOtherRootPort = place(0, 0, {0, 11});
const Locality kOtherHostBridge = place(0, 0, {1, 12});
const Locality kOtherNode = place(0, 1, {2, 13});
const Locality kOtherPackage = place(1, 2, {3, 14});

TEST(Distance, HasTheWordsOfTheField) {
  EXPECT_EQ(word(kFirst, kFirst), "PIX") << "two functions of one card";
  EXPECT_EQ(word(kFirst, kBesideFirst), "PIX");
  EXPECT_EQ(word(kFirst, kBehindSecondSwitch), "PXB");
  EXPECT_EQ(word(kFirst, kOtherRootPort), "PHB");
  EXPECT_EQ(word(kFirst, kOtherHostBridge), "NODE");
  EXPECT_EQ(word(kFirst, kOtherNode), "SYS");
  EXPECT_EQ(word(kFirst, kOtherPackage), "SYS");
  EXPECT_EQ(word(place(0, 0, {}), place(0, 0, {})), "NODE") << "not on PCI";
  EXPECT_EQ(word(place(-1, -1, {}), kFirst), "?");
  EXPECT_EQ(word(place(0, -1, {}), kFirst), "SYS") << "near to a package of several NUMA nodes";
}

TEST(Distance, OrdersNearToFar) {
  const Locality* const far_to_near[] = {&kOtherPackage,  &kOtherNode,          &kOtherHostBridge,
                                         &kOtherRootPort, &kBehindSecondSwitch, &kBesideFirst};
  for (std::size_t i = 0; i + 1 < std::size(far_to_near); ++i) {
    EXPECT_GT(distance(kFirst, *far_to_near[i]), distance(kFirst, *far_to_near[i + 1])) << i;
  }
  EXPECT_LT(distance(kFirst, kOtherPackage), distance(kFirst, place(-1, -1, {}))) << "the unknown is furthest";
}

TEST(Nic, IsCalledByItsNames) {
  Nic nic;
  nic.index = 4;
  EXPECT_EQ(nic.name(), "NIC 4");
  nic.pci = PciAddress::parse("0000:3b:00.1");
  EXPECT_EQ(nic.name(), "0000:3b:00.1");
  nic.rdma_device = "mlx5_0";
  EXPECT_EQ(nic.name(), "mlx5_0");
  nic.interface = "ib0";
  EXPECT_EQ(nic.name(), "ib0 (mlx5_0)");
  nic.rdma_device.clear();
  EXPECT_EQ(nic.name(), "ib0");
}

}  // namespace
}  // namespace ddp
