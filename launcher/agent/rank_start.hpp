// With what a rank is started: its environment, and how it is executed.
#pragma once

#include <string>
#include <vector>

#include "agent/job_layout.hpp"
#include "workers/spawn.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

/// What the processes of a rank know of it before its attempt has a store or a PMIx server.
struct RankStart {
  const NodeJob& job;
  const control::PrepareAttempt& plan;
  const NodeRanks& ranks;
  const topology::RankPlan& place;
  int local_rank;

  int rank() const { return ranks.first_rank + local_rank; }
};

/// The places of a node's ranks, by local rank.
std::vector<topology::RankPlan> places_of_ranks(const NodeJob& job, const control::PrepareAttempt& plan);

struct RankStore {
  std::string address{};  ///< empty: unknown
  int port = 0;
};

/// All but what PMIx and the folder of changes add. @param inheritable of without_task_identity()
EnvironmentMap rank_environment(const RankStart& start, const EnvironmentMap& inheritable, const RankStore& store,
                                std::string error_file);

/// With this process's own standard streams.
SpawnRequest rank_request(const RankStart& start, const EnvironmentMap& environment);

}  // namespace ddp::launcher
