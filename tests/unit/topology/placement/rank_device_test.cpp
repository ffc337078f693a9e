// Which device a process takes for its own: the one that the launcher's plan means, on machines of all shapes.
#include "topology/placement/rank_device.hpp"
#include "topology/placement/node_planner.hpp"
#include "unit/topology/machine_summary.hpp"
#include "unit/topology/machines.hpp"

namespace ddp::topology {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

std::optional<RankDevice> device_with(const Topology& machine, int local_rank, int ranks, Variables variables,
                                      const Placement* placement = nullptr) {
  return rank_device(machine, {.local_rank = local_rank, .local_world_size = ranks, .placement = placement},
                     base::Environment{std::move(variables)});
}

/// Ranks as ddprun or srun --ddp starts them. @returns how many of them were compared.
int check_agreement(const Topology& machine, GpuVisibility visibility, int ranks, const Variables& inherited) {
  NodeRequest request{.bind = BindPolicy::none, .gpus = visibility, .environment = base::Environment{inherited}};
  for (int rank = 0; rank < ranks; ++rank) {
    request.ranks.push_back({.cpus = machine.cpus(), .devices = device_variables(request.environment)});
  }
  int compared = 0;
  for (const RankPlan& plan : plan_node(machine, request)) {
    if (!plan.placement.gpu) continue;
    const Gpu& gpu = machine.gpus().at(static_cast<std::size_t>(*plan.placement.gpu));
    if (gpu.vendor != Vendor::nvidia) continue;
    Variables variables = inherited;
    for (const Setting& setting : plan.settings) variables[setting.name] = setting.value;
    const auto device = device_with(machine, plan.placement.local_rank, ranks, variables);
    EXPECT_TRUE(device) << plan.summary;
    if (!device) continue;
    EXPECT_EQ(device->pci_bus_id, gpu.pci.to_string())
        << plan.summary << " of " << ranks << " ranks, CUDA_VISIBLE_DEVICES=" << variables["CUDA_VISIBLE_DEVICES"];
    ++compared;
  }
  return compared;
}

int check_machine(const Topology& machine) {
  int compared = 0;
  for (const GpuVisibility visibility : {GpuVisibility::all, GpuVisibility::one}) {
    for (const int ranks : {1, 3, 8, 11}) compared += check_agreement(machine, visibility, ranks, {});
  }
  return compared;
}

TEST(RankDevice, IsThatOfTheLaunchersPlan) {
  const Topology machine = Topology::from_parts(ddp::test::eight_gpu_machine());
  EXPECT_EQ(check_machine(machine), 2 * (1 + 3 + 8 + 11));
  for (const char* list : {"3,1", "7", "0,1,2,3", "5,4,3"}) {
    EXPECT_EQ(check_agreement(machine, GpuVisibility::all, 3, {{"CUDA_VISIBLE_DEVICES", list}}), 3);
    EXPECT_EQ(check_agreement(machine, GpuVisibility::one, 3, {{"CUDA_VISIBLE_DEVICES", list}}), 3);
  }
  int compared = 0;
  for (std::uint32_t seed = 0; seed < 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    compared += check_machine(Topology::from_parts(ddp::test::random_machine(seed)));
  }
  EXPECT_GT(compared, 500);
}

TEST(RankDevice, OfRecordedMachines) {
  const std::filesystem::path folder = ddp::test::source_root() / "tests/topologies";
  const Topology own = Topology::from_xml_file((folder / "eight-gpus-four-switches.xml").string());
  EXPECT_GT(check_machine(own), 0);
  EXPECT_FALSE(device_with(Topology::from_xml_file((folder / "no-gpu.xml").string()), 0, 1, {}));
  const auto recorded = recorded_machines();
  if (!recorded) return;
  for (const auto& file : std::filesystem::directory_iterator(*recorded)) {
    if (file.path().extension() != ".xml") continue;
    SCOPED_TRACE(file.path());
    try {
      check_machine(Topology::from_xml_file(file.path().string()));
    } catch (const std::exception&) {  // some are recorded because they cannot be read
    }
  }
}

TEST(RankDevice, WithoutALauncherItIsTheOneOfTheLocalRank) {
  const Topology machine = Topology::from_parts(ddp::test::eight_gpu_machine());
  const auto device = device_with(machine, 2, 4, {});
  ASSERT_TRUE(device);
  EXPECT_EQ(device->index, 2);
  EXPECT_EQ(device->pci_bus_id, machine.gpus()[2].pci.to_string());
  EXPECT_EQ(device->uuid, machine.gpus()[2].uuid);
  EXPECT_EQ(device->reason, "local rank 2 of 4, 8 visible GPUs");
  EXPECT_EQ(device_with(machine, 9, 16, {})->index, 4) << "two ranks share each";
  const auto listed = device_with(machine, 1, 2, {{"CUDA_VISIBLE_DEVICES", "6,3"}});
  EXPECT_EQ(listed->index, 1);
  EXPECT_EQ(listed->pci_bus_id, machine.gpus()[3].pci.to_string());
  EXPECT_THAT(listed->reason, testing::HasSubstr("CUDA_VISIBLE_DEVICES=6,3"));
  EXPECT_EQ(device_with(machine, 3, 4, {{"CUDA_VISIBLE_DEVICES", "5"}})->index, 0) << "as Slurm gives one to each task";
  EXPECT_FALSE(device_with(machine, 0, 1, {{"CUDA_VISIBLE_DEVICES", ""}}));
}

TEST(RankDevice, WhatDdpBindPlacedCounts) {
  const Topology machine = Topology::from_parts(ddp::test::eight_gpu_machine());
  Placement placement;
  placement.gpu = 5;
  EXPECT_EQ(device_with(machine, 0, 2, {}, &placement)->index, 5);
  const auto listed = device_with(machine, 0, 2, {{"CUDA_VISIBLE_DEVICES", "4,5"}}, &placement);
  EXPECT_EQ(listed->index, 1);
  EXPECT_THAT(listed->reason, testing::HasSubstr("DDP_BIND"));
  EXPECT_EQ(device_with(machine, 0, 2, {{"CUDA_VISIBLE_DEVICES", "6,7"}}, &placement)->index, 0) << "it cannot be seen";
}

TEST(RankDevice, PlacesAreToldOnlyWhereTheyAreKnown) {
  Topology::Parts parts = ddp::test::eight_gpu_machine();
  parts.gpus[0].model = "an older one";
  const Topology mixed = Topology::from_parts(parts);
  EXPECT_EQ(device_with(mixed, 1, 2, {})->pci_bus_id, "") << "CUDA numbers the fastest first";
  EXPECT_EQ(device_with(mixed, 1, 2, {})->uuid, "");
  EXPECT_EQ(device_with(mixed, 1, 2, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}})->pci_bus_id, parts.gpus[1].pci.to_string());

  for (Gpu& gpu : parts.gpus) gpu.uuid.clear();
  const auto unknown = device_with(Topology::from_parts(parts), 1, 2, {{"CUDA_VISIBLE_DEVICES", "GPU-aaaa,GPU-bbbb"}});
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->index, 1);
  EXPECT_EQ(unknown->uuid, "GPU-bbbb");
  EXPECT_EQ(unknown->pci_bus_id, "");

  parts = ddp::test::eight_gpu_machine();
  parts.gpus[3].mig = {{"MIG-a", "1g"}, {"MIG-b", "1g"}};
  const auto part = device_with(Topology::from_parts(parts), 1, 2, {{"CUDA_VISIBLE_DEVICES", "MIG-b"}});
  ASSERT_TRUE(part);
  EXPECT_EQ(part->uuid, "MIG-b");
  EXPECT_EQ(part->pci_bus_id, parts.gpus[3].pci.to_string());
}

using Indices = std::vector<int>;

/// Ranks with these values of CUDA_VISIBLE_DEVICES; nothing: it is unset.
std::vector<RankResources> ranks_with(const std::vector<std::optional<std::string>>& values) {
  std::vector<RankResources> ranks;
  for (const auto& value : values) {
    ranks.push_back({.devices = {}});
    if (value) ranks.back().devices.emplace("CUDA_VISIBLE_DEVICES", *value);
  }
  return ranks;
}

std::optional<Indices> gpus_with(const std::vector<std::optional<std::string>>& values,
                                 GpuVisibility visibility = GpuVisibility::none) {
  const Topology machine = Topology::from_parts(ddp::test::eight_gpu_machine());
  const auto ranks = ranks_with(values);
  return gpus_of_ranks(RankViews(machine, ranks), ranks, visibility);
}

constexpr std::nullopt_t kUnset = std::nullopt;

TEST(RankGpus, OneListForAllIsInItsOrder) {
  EXPECT_EQ(gpus_with({"3,1", "3,1"}), (Indices{3, 1}));
  EXPECT_EQ(gpus_with({"0,1,2,3,4,5,6,7"}), (Indices{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(RankGpus, OfDifferentListsEachRankHasItsFirst) {
  EXPECT_EQ(gpus_with({"6", "1", "4"}), (Indices{6, 1, 4}));
  EXPECT_EQ(gpus_with({"6,7", "0,1"}), (Indices{6, 0}));
}

TEST(RankGpus, EqualListsAreNotOneGpuForEach) { EXPECT_EQ(gpus_with({"5", "5"}), (Indices{5})) << "they share it"; }

TEST(RankGpus, WithoutListsAsManyRanksAsGpusChooseFreely) {
  EXPECT_EQ(gpus_with(std::vector<std::optional<std::string>>(8, kUnset)), std::nullopt);
  EXPECT_EQ(gpus_with(std::vector<std::optional<std::string>>(9, kUnset)), std::nullopt);
}

TEST(RankGpus, WithoutListsFewerRanksUseTheFirstNumbers) {
  EXPECT_EQ(gpus_with({kUnset, kUnset}), (Indices{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(gpus_with({"3", kUnset}), (Indices{0, 1, 2, 3, 4, 5, 6, 7})) << "one of them is told nothing";
}

TEST(RankGpus, RanksWhoseGpusAreSetMayBeSpread) {
  for (const GpuVisibility visibility : {GpuVisibility::all, GpuVisibility::one}) {
    EXPECT_EQ(gpus_with({kUnset, kUnset}, visibility), std::nullopt);
    EXPECT_EQ(gpus_with({"6", "1"}, visibility), (Indices{6, 1})) << "their lists count all the same";
  }
}

TEST(RankGpus, ARankWithoutAnyMeansNone) {
  EXPECT_EQ(gpus_with({"", ""}), Indices{});
  EXPECT_EQ(gpus_with({"2", ""}), Indices{});
}

TEST(RankGpus, MachinesWithoutGpusHaveNone) {
  const Topology machine = Topology::from_parts(ddp::test::cpu_machine());
  const auto two = [&](const std::optional<std::string>& value) {
    const auto ranks = ranks_with({value, value});
    return gpus_of_ranks(RankViews(machine, ranks), ranks, GpuVisibility::none);
  };
  EXPECT_EQ(two(kUnset), std::nullopt);
  EXPECT_EQ(two("0"), std::nullopt);
}

}  // namespace

}  // namespace ddp::topology
