#include "topology/placement/rank_gpus.hpp"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "unit/topology/machines.hpp"

namespace ddp::topology {
namespace {

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
