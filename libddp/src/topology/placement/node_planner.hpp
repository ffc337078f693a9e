// What each rank of a node gets: devices, cores, binding and settings. One rule for ddprun, srun --ddp, World::init and
// ddp-info.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/placement.hpp>

#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "topology/network/interface_candidates.hpp"
#include "topology/placement/option_words.hpp"
#include "topology/placement/rank_resources.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::topology {

struct NodeRequest {
  BindPolicy bind = BindPolicy::numa;
  GpuVisibility gpus = GpuVisibility::all;
  std::vector<RankResources> ranks{};  ///< by local rank; at least one
  SocketInterface interface {};        ///< without a name: none is recommended
  /// What the ranks inherit; the RankResources::devices of each come on top.
  base::Environment environment{{}};
  std::vector<base::NcclConf> nccl_conf = {};  ///< files that NCCL reads, the strongest first
};

struct RankPlan {
  Placement placement{};
  std::optional<Binding> binding{};  ///< nothing with BindPolicy::none: the rank keeps its mask
  std::vector<Setting> settings{};   ///< by name
  std::string summary{};  ///< "4 cores (processors 0-3), NUMA node 0, GPU 1 (0000:3b:00.0), NIC ib0 (mlx5_0)"
};

/// One plan per rank, by local rank. Pure. Throws Error(invalid_argument) as place(): no rank, or one whose processors
/// are none of the machine's.
std::vector<RankPlan> plan_node(const Topology& topology, const NodeRequest& request);

}  // namespace ddp::topology
