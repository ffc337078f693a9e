// How many ranks this node runs, and what each of them gets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/topology.hpp>

#include "base/cgroup_limits.hpp"
#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "options/launch_options.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::launcher {

/// Made once, before the first attempt. Ranks of a machine that cannot be read or planned keep ddprun's own mask and
/// environment; a warning on standard error says so once.
class NodePlacement {
 public:
  /// Of this machine and the processors that ddprun itself may use.
  static NodePlacement of_this_host(const LaunchOptions& options, const base::Environment& environment);

  /// @param environment what the user and the job scheduler gave; its *_VISIBLE_DEVICES limit the GPUs.
  /// @param topology nothing: unknown. @param allowed processors for ranks. @param limits of ddprun's cgroups. @param
  /// nccl_conf files that NCCL reads. Throws ExitError(kExitUsage) for --nproc-per-node=gpu without GPUs.
  NodePlacement(const LaunchOptions& options, base::Environment environment, std::optional<Topology> topology,
                const CpuSet& allowed, const base::CgroupLimits& limits = {},
                std::vector<base::NcclConf> nccl_conf = {});

  /// Processors that ranks may use.
  const CpuSet& allowed() const { return request_.ranks.front().cpus; }
  int nproc() const { return static_cast<int>(request_.ranks.size()); }
  /// This machine as hwloc writes it; empty when it could not be read, or HWLOC_* variables describe another one.
  std::string topology_xml() const;
  /// nproc() plans, by local rank. Those of ranks that cannot be placed have only a summary.
  std::vector<topology::RankPlan> plan(const topology::SocketInterface& interface) const;

 private:
  topology::NodeRequest request_;
  std::optional<Topology> topology_;
  bool placed_ = false;
};

}  // namespace ddp::launcher
