// The facts of all nodes of a Slurm job.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::tools::status {

struct SlurmHosts {
  std::vector<diagnostics::HostFacts> hosts{};
  std::vector<std::string> notes;
  int nodes = 0;  ///< of the job; those that have answered may be fewer
};

/// @param job "17" or "17.0". Throws Error: not_found, also where another user's job is hidden; unavailable without
/// Slurm and for another user's job.
SlurmHosts ask_slurm_hosts(const std::string& job, bool stacks, Deadline deadline);

}  // namespace ddp::tools::status
