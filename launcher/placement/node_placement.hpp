// Where the ranks of this node go: how many they are, their cores, memory, GPUs and the variables that follow from
// them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::launcher {

/// A network interface for sockets, and one sentence why; an empty name: none was chosen.
struct SocketInterface {
  std::string name;
  std::string reason;
};

/// The interface over which ranks that are all on this host reach each other: the user's, as World::init will take it,
/// else loopback. Throws Error(invalid_argument) when the user has named one that is not there.
SocketInterface one_host_interface(const base::Environment& environment);

/// Read once, before the first attempt. A machine that cannot be read gives ranks that are not bound, and a warning on
/// standard error.
class NodePlacement {
 public:
  /// Reads this machine and places the ranks on what ddprun itself may use.
  /// @param environment what the user and the job scheduler gave; its *_VISIBLE_DEVICES limit the GPUs.
  /// Throws ExitError(kExitUsage) for --nproc-per-node=gpu without GPUs.
  NodePlacement(const LaunchOptions& options, const base::Environment& environment);

  int nproc() const { return nproc_; }
  /// This machine as hwloc writes it; empty when it could not be read, or HWLOC_* variables describe another one.
  const std::string& topology_xml() const { return topology_xml_; }
  /// Nothing: the rank keeps ddprun's own.
  const std::optional<Binding>& binding(int local_rank) const;
  /// "4 cores (processors 0-3), NUMA node 0, GPU 1 (0000:3b:00.0), NIC ib0 (mlx5_0)"
  std::string summary(int local_rank) const;
  std::vector<topology::Setting> settings(int local_rank, const SocketInterface& interface) const;

 private:
  void place_ranks(const LaunchOptions& options);

  base::Environment environment_;
  topology::GpuVisibility gpus_;
  bool bound_;
  int nproc_ = 1;
  std::optional<Topology> topology_;
  std::string topology_xml_;
  std::vector<Placement> placements_;  ///< by local rank; empty when there are none
  std::vector<std::optional<Binding>> bindings_;
};

}  // namespace ddp::launcher
