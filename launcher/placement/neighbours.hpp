// Ranks that another ddprun or srun --ddp of this user has started in the same allocation: two that run at once know
// nothing of each other, and choose the same cores.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <ddp/cpu_set.hpp>

#include "base/env_table.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::launcher {

struct NeighbourRank {
  pid_t pid = 0;
  CpuSet cpus;  ///< its mask
};

/// Those of this host, without the processes above @p self: a ddprun may run in a rank. None outside Slurm.
/// @param proc "/proc" @param environment of @p self
std::vector<NeighbourRank> read_neighbours(const std::string& proc, const base::Environment& environment, pid_t self);

/// What is to be said where ranks are going to be bound to processors to which neighbours are; empty: nothing.
/// @param allowed all that this job may use here: a neighbour with as many is not bound
std::string shared_cores_warning(const std::vector<topology::RankPlan>& plans, const CpuSet& allowed,
                                 const std::vector<NeighbourRank>& neighbours);

}  // namespace ddp::launcher
