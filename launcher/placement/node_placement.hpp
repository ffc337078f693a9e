// Where the ranks of this node go: cores, memory, GPUs and the variables that follow from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"
#include "topology/settings.hpp"

namespace ddp::launcher {

/// What one rank gets.
struct RankPlacement {
  std::optional<Binding> binding;  ///< nothing: it keeps ddprun's own
  std::vector<topology::Setting> settings;
  std::string summary;  ///< "cores 0-3, NUMA node 0, GPU 1 (0000:3b:00.0), NIC ib0 (mlx5_0)"
};

/// Reads this machine and places the ranks on what ddprun itself may use. Ranks stay on this host: loopback is their
/// socket interface, unless the user names another.
/// @param environment what the user and the job scheduler gave; its *_VISIBLE_DEVICES limit the GPUs.
/// A machine that cannot be read gives ranks that are not bound, and a warning on standard error. Throws
/// Error(invalid_argument) when the user names an interface that is not there.
std::vector<RankPlacement> place_ranks(const LaunchOptions& options, const base::Environment& environment);

}  // namespace ddp::launcher
