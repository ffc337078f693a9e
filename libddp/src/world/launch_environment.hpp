// Finds out from the environment alone which launcher started this process, and what every source says about rank and
// size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/world.hpp>

#include "base/env_table.hpp"
#include "base/torchrun_environment.hpp"

namespace ddp::world {

/// One variable's statement about rank or size.
struct Claim {
  std::string variable;
  int value;
};

struct LaunchEnvironment {
  LaunchSource source = LaunchSource::single;
  std::string reason;  ///< one sentence
  /// What the other sources that describe the same job say; to be compared with the chosen source's rank and size.
  std::vector<Claim> rank_claims;
  std::vector<Claim> size_claims;
  std::optional<base::TorchrunEnvironment> torchrun;  ///< set for LaunchSource::torchrun
  /// Hosts of the job as far as the environment knows them: where to look for the interface that reaches the peers.
  std::vector<std::string> peer_hosts;
};

/// Decides for a source. @p forced: that source and no other; then claims of others are not collected.
/// Throws Error: invalid_argument for variables that cannot be understood or do not fit together, unavailable when
/// several Slurm tasks run without any PMI or a forced source is not there.
LaunchEnvironment detect_launch(const base::Environment& environment, std::optional<LaunchSource> forced);

/// Throws Error(conflict), which prints both values, when a claim differs from what the chosen source says.
void check_agreement(const LaunchEnvironment& launch, std::string_view chosen, int rank, int world_size);

}  // namespace ddp::world
