#include "topology/placement/visible_devices.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/placement/settings.hpp"

namespace ddp::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string, std::less<>>;
using Indices = std::vector<int>;

Topology machine_of(std::vector<Gpu> gpus) {
  Topology::Parts parts;
  parts.numa_nodes.push_back({.os_index = 0, .package = -1, .cpus = CpuSet::parse("0-7"), .memory_bytes = 0});
  parts.cores.push_back({.numa_node = 0, .package = -1, .cpus = CpuSet::parse("0-7")});
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    gpus[i].index = static_cast<int>(i);
    gpus[i].pci.bus = static_cast<std::uint8_t>(i + 1);
    parts.gpus.push_back(std::move(gpus[i]));
  }
  return Topology::from_parts(std::move(parts));
}

Gpu nvidia(const std::string& uuid) {
  Gpu gpu;
  gpu.vendor = Vendor::nvidia;
  gpu.uuid = uuid;
  return gpu;
}
Gpu of(Vendor vendor) {
  Gpu gpu;
  gpu.vendor = vendor;
  return gpu;
}

Topology four_nvidia() {
  return machine_of({nvidia("GPU-3a1c"), nvidia("GPU-3a2f"), nvidia("GPU-9000"), nvidia("GPU-b000")});
}

std::optional<Indices> named(const Topology& machine, Variables variables) {
  return gpus_named_by(machine, base::Environment{std::move(variables)});
}
std::optional<Indices> cuda(const Topology& machine, const std::string& value) {
  return named(machine, {{"CUDA_VISIBLE_DEVICES", value}});
}

TEST(VisibleDevices, NothingIsSaidWithoutAVariable) { EXPECT_EQ(named(four_nvidia(), {{"OTHER", "0"}}), std::nullopt); }

TEST(VisibleDevices, NumbersKeepTheOrderOfTheList) {
  EXPECT_EQ(cuda(four_nvidia(), "2,0"), (Indices{2, 0}));
  EXPECT_EQ(cuda(four_nvidia(), " 1 , 3"), (Indices{1, 3}));
}

TEST(VisibleDevices, StopAtTheFirstEntryThatNamesNoDevice) {
  EXPECT_EQ(cuda(four_nvidia(), "1,4,2"), (Indices{1}));
  EXPECT_EQ(cuda(four_nvidia(), "1,-1,2"), (Indices{1}));
  EXPECT_EQ(cuda(four_nvidia(), "1,,2"), (Indices{1}));
  EXPECT_EQ(cuda(four_nvidia(), "1,2x"), (Indices{1}));
  EXPECT_EQ(cuda(four_nvidia(), "NoDevFiles"), Indices{});
  EXPECT_EQ(cuda(four_nvidia(), "99999999999999999999"), Indices{});
}

TEST(VisibleDevices, AnEmptyListHidesAllGpus) { EXPECT_EQ(cuda(four_nvidia(), ""), Indices{}); }

TEST(VisibleDevices, ADeviceCountsOnce) { EXPECT_EQ(cuda(four_nvidia(), "1,1,2"), (Indices{1})); }

TEST(VisibleDevices, UuidsMayBeCutShortWhileTheyNameOneDevice) {
  EXPECT_EQ(cuda(four_nvidia(), "GPU-9"), (Indices{2}));
  EXPECT_EQ(cuda(four_nvidia(), "GPU-3a2f,0"), (Indices{1, 0}));
  EXPECT_EQ(cuda(four_nvidia(), "GPU-b,GPU-3a"), (Indices{3})) << "two devices begin with GPU-3a";
  EXPECT_EQ(cuda(four_nvidia(), "GPU-77"), Indices{});
}

TEST(VisibleDevices, UuidsThatCannotBeLookedUpSayNothing) {
  const Topology machine = machine_of({nvidia(""), nvidia("")});
  EXPECT_EQ(cuda(machine, "GPU-3a1c"), std::nullopt);
  EXPECT_EQ(cuda(machine, "MIG-3a1c"), std::nullopt);
  EXPECT_EQ(cuda(machine, "1"), (Indices{1})) << "numbers need no UUID";
}

TEST(VisibleDevices, NumbersCountOnlyWhatTheProcessMayUse) {
  std::vector<Gpu> gpus(3, of(Vendor::nvidia));
  gpus[0].visible = false;
  const Topology machine = machine_of(gpus);
  EXPECT_THAT(visible_gpus(machine, Vendor::nvidia), ElementsAre(1, 2));
  EXPECT_EQ(cuda(machine, "1,0"), (Indices{2, 1}));
  EXPECT_EQ(cuda(machine, "2"), Indices{});
}

TEST(VisibleDevices, MigDevicesNameTheirGpu) {
  Gpu split = nvidia("GPU-3a1c");
  split.mig = {{"MIG-aaaa", "1g.10gb"}, {"MIG-abbb", "1g.10gb"}};
  const Topology machine = machine_of({nvidia("GPU-1000"), split});
  EXPECT_EQ(cuda(machine, "MIG-aaaa,MIG-abbb"), (Indices{1}));
  EXPECT_EQ(cuda(machine, "MIG-GPU-3a1c/7/0"), (Indices{1})) << "as drivers before R470 wrote it";
  EXPECT_EQ(cuda(machine, "MIG-a"), Indices{}) << "two begin so";
  const auto variables = visible_variables(machine, Vendor::nvidia,
                                           base::Environment{{{"CUDA_VISIBLE_DEVICES", "MIG-aaaa,MIG-ab,MIG-aaaa"}}});
  ASSERT_EQ(variables.size(), 1U);
  ASSERT_EQ(variables[0].entries.size(), 2U) << "each part counts, but once";
  EXPECT_EQ(variables[0].entries[1].text, "MIG-ab");
  EXPECT_EQ(variables[0].wrong_entry, "MIG-aaaa");
}

TEST(VisibleDevices, HipNumbersWhatRocrLeaves) {
  const Topology machine = machine_of(std::vector<Gpu>(4, of(Vendor::amd)));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}}), (Indices{3, 1}));
  EXPECT_EQ(named(machine, {{"HIP_VISIBLE_DEVICES", "2"}}), (Indices{2}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}, {"HIP_VISIBLE_DEVICES", "1,0"}}), (Indices{1, 3}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}, {"HIP_VISIBLE_DEVICES", "2"}}), Indices{});
}

TEST(VisibleDevices, LevelZeroKeepsItsOwnOrder) {
  const Topology machine = machine_of(std::vector<Gpu>(3, of(Vendor::intel)));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "2,0"}}), (Indices{0, 2}));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "1.0,1.1"}}), (Indices{1})) << "two tiles of a card";
}

TEST(VisibleDevices, AVariableSpeaksOfItsVendorOnly) {
  const Topology machine = machine_of({of(Vendor::nvidia), of(Vendor::nvidia), of(Vendor::amd)});
  EXPECT_EQ(cuda(machine, "1"), (Indices{1, 2}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", ""}}), (Indices{0, 1}));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "0"}}), std::nullopt) << "there is no such GPU";
}

}  // namespace
}  // namespace ddp::topology
