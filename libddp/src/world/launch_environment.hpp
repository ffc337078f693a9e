// Detects the launcher from the environment alone, and what every source says about rank and size.
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
  /// Of other sources that describe the same job, to be compared with the chosen source's rank and size.
  std::vector<Claim> rank_claims;
  std::vector<Claim> size_claims;
  std::optional<base::TorchrunEnvironment> torchrun;  ///< set for LaunchSource::torchrun
  /// Hosts of the job that the environment names, for choosing the interface that reaches them.
  std::vector<std::string> peer_hosts;
};

/// Chooses a source. @p forced: that one, without the claims of others.
/// Throws Error: invalid_argument for malformed or inconsistent variables, unavailable when
/// several Slurm tasks run without any PMI or a forced source is not there.
LaunchEnvironment detect_launch(const base::Environment& environment, std::optional<LaunchSource> forced);

/// Throws Error(conflict), which prints both values, when a claim differs from what the chosen source says.
void check_agreement(const LaunchEnvironment& launch, std::string_view chosen, int rank, int world_size);

}  // namespace ddp::world
