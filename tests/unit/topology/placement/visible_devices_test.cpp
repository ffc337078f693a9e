#include "topology/placement/visible_devices.hpp"

#include "topology/placement/settings.hpp"

namespace ddp::topology {
namespace {

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
  EXPECT_EQ(cuda(four_nvidia(), "1,x2"), (Indices{1}));
  EXPECT_EQ(cuda(four_nvidia(), "-1,0"), Indices{});
  EXPECT_EQ(cuda(four_nvidia(), "NoDevFiles"), Indices{});
  EXPECT_EQ(cuda(four_nvidia(), "99999999999999999999"), Indices{});
}

TEST(VisibleDevices, AnEmptyListHidesAllGpus) { EXPECT_EQ(cuda(four_nvidia(), ""), Indices{}); }

TEST(VisibleDevices, CudaReadsTheNumberWithWhichAnEntryBegins) {
  EXPECT_EQ(cuda(four_nvidia(), "1gpu,+2,\t3 "), (Indices{1, 2, 3}));
  EXPECT_EQ(cuda(four_nvidia(), "0x2"), (Indices{0}));
  EXPECT_EQ(cuda(four_nvidia(), "02,3"), (Indices{2, 3}));
}

TEST(VisibleDevices, CudaShowsNothingWhereADeviceIsThereTwice) {
  for (const char* list : {"1,1,2", "0,1,2,0", "0,9,0", "1,01", "GPU-9,GPU-9", "GPU-9,GPU-9000"})
    EXPECT_EQ(cuda(four_nvidia(), list), Indices{}) << list;
  const auto variables =
      visible_variables(four_nvidia(), Vendor::nvidia, base::Environment{{{"CUDA_VISIBLE_DEVICES", "1,1"}}});
  EXPECT_TRUE(variables.at(0).repeats);
  EXPECT_EQ(variables.at(0).wrong_entry, "1");
}

TEST(VisibleDevices, CudasFirstEntryDecidesOfWhatKindTheOthersAre) {
  EXPECT_EQ(cuda(four_nvidia(), "GPU-9,0"), (Indices{2}));
  EXPECT_EQ(cuda(four_nvidia(), "0,GPU-9"), (Indices{0}));
  EXPECT_EQ(cuda(four_nvidia(), "GPU-9,MIG-1"), (Indices{2}));
  EXPECT_EQ(cuda(four_nvidia(), "GPU-9, GPU-b"), (Indices{2})) << "a blank is part of a UUID";
}

TEST(VisibleDevices, UuidsMayBeCutShortWhileTheyNameOneDevice) {
  EXPECT_EQ(cuda(four_nvidia(), "GPU-9"), (Indices{2}));
  EXPECT_EQ(cuda(four_nvidia(), "GPU-3a2f,GPU-3a1"), (Indices{1, 0}));
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
                                           base::Environment{{{"CUDA_VISIBLE_DEVICES", "MIG-aaaa,MIG-ab,MIG-c"}}});
  ASSERT_EQ(variables.size(), 1U);
  ASSERT_EQ(variables[0].entries.size(), 2U) << "each part counts";
  EXPECT_EQ(variables[0].entries[1].text, "MIG-ab");
  EXPECT_EQ(variables[0].wrong_entry, "MIG-c");
  EXPECT_EQ(cuda(machine, "MIG-aaaa,MIG-ab,MIG-aaaa"), Indices{});
}

TEST(VisibleDevices, HipNumbersWhatRocrLeaves) {
  const Topology machine = machine_of(std::vector<Gpu>(4, of(Vendor::amd)));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}}), (Indices{3, 1}));
  EXPECT_EQ(named(machine, {{"HIP_VISIBLE_DEVICES", "2"}}), (Indices{2}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}, {"HIP_VISIBLE_DEVICES", "1,0"}}), (Indices{1, 3}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,1"}, {"HIP_VISIBLE_DEVICES", "2"}}), Indices{});
}

TEST(VisibleDevices, HipTakesCudasListWithoutItsOwn) {
  const Topology machine = machine_of(std::vector<Gpu>(4, of(Vendor::amd)));
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", "2,1"}}), (Indices{2, 1}));
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", "2,1"}, {"HIP_VISIBLE_DEVICES", "0"}}), (Indices{0}));
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", "2,1"}, {"HIP_VISIBLE_DEVICES", ""}}), (Indices{2, 1}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,2,0"}, {"CUDA_VISIBLE_DEVICES", "2,0"}}), (Indices{0, 3}));
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", ""}}), std::nullopt) << "to HIP, an empty list is none";
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}), Indices{});
}

TEST(VisibleDevices, GpuDeviceOrdinalActsBetweenRocrAndHip) {
  const Topology machine = machine_of(std::vector<Gpu>(4, of(Vendor::amd)));
  EXPECT_EQ(named(machine, {{"GPU_DEVICE_ORDINAL", "1,2"}}), (Indices{1, 2}));
  EXPECT_EQ(named(machine, {{"GPU_DEVICE_ORDINAL", "2,3"}, {"HIP_VISIBLE_DEVICES", "1"}}), (Indices{3}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", "3,2,1"}, {"GPU_DEVICE_ORDINAL", "0,2"}}), (Indices{3, 1}));
  // As Slurm sets all of them where it hides the others.
  const Variables slurm{
      {"ROCR_VISIBLE_DEVICES", "0,1"}, {"GPU_DEVICE_ORDINAL", "0,1"}, {"CUDA_VISIBLE_DEVICES", "0,1"}};
  EXPECT_EQ(named(machine, slurm), (Indices{0, 1}));
}

TEST(VisibleDevices, AmdsRuntimesReadListsEachInItsWay) {
  Gpu first = of(Vendor::amd);
  first.uuid = "GPU-3a1c5566778899aa";
  Gpu second = of(Vendor::amd);
  second.uuid = "GPU-3a2f5566778899aa";
  const Topology machine = machine_of({first, second, of(Vendor::amd)});
  const auto rocr = [&](const char* list) { return named(machine, {{"ROCR_VISIBLE_DEVICES", list}}); };
  EXPECT_EQ(rocr(" 0x1 , 2"), (Indices{1, 2}));
  EXPECT_EQ(rocr("1,2x"), (Indices{1}));
  EXPECT_EQ(rocr("1,0,1,2"), (Indices{1, 0})) << "it stops where one is there twice";
  EXPECT_EQ(rocr("gpu-3A2F,GPU-3a1c"), (Indices{1, 0}));
  EXPECT_EQ(rocr("GPU-3a"), Indices{}) << "of two devices";
  const auto hip = [&](const char* list) { return named(machine, {{"HIP_VISIBLE_DEVICES", list}}); };
  EXPECT_EQ(hip("1,0,1,2"), (Indices{1, 0, 2})) << "it counts once what is there twice";
  EXPECT_EQ(hip("1, 2"), (Indices{1})) << "a blank makes no number";
  EXPECT_EQ(hip("01"), Indices{});
  EXPECT_EQ(hip("GPU-3a"), (Indices{0}));
  EXPECT_EQ(hip("GPU-3A2F"), std::nullopt) << "the third one's UUID is not known";
}

TEST(VisibleDevices, LevelZeroKeepsItsOwnOrder) {
  const Topology machine = machine_of(std::vector<Gpu>(3, of(Vendor::intel)));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "2,0"}}), (Indices{0, 2}));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "1.0,1.1"}}), (Indices{1})) << "two tiles of a card";
}

TEST(VisibleDevices, AVariableSpeaksOfItsVendorOnly) {
  const Topology machine = machine_of({of(Vendor::nvidia), of(Vendor::nvidia), of(Vendor::amd)});
  EXPECT_EQ(cuda(machine, "1"), (Indices{1})) << "HIP reads it, too";
  EXPECT_EQ(named(machine, {{"CUDA_VISIBLE_DEVICES", "1"}, {"HIP_VISIBLE_DEVICES", "0"}}), (Indices{1, 2}));
  EXPECT_EQ(named(machine, {{"ROCR_VISIBLE_DEVICES", ""}}), (Indices{0, 1}));
  EXPECT_EQ(named(machine, {{"ZE_AFFINITY_MASK", "0"}}), std::nullopt) << "there is no such GPU";
}

}  // namespace
}  // namespace ddp::topology
