// Over which network interface the tasks of this node reach the other nodes: the nodes of a step agree in its store.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "task_side/node_plan.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::srun_plugin {

struct NetworkChoice {
  topology::SocketInterface interface;  ///< without a name: none
  std::vector<std::string> remarks{};   ///< for --ddp-verbose
  std::string warning{};                ///< for the step; at most one of its nodes has one
  bool step_ends = false;               ///< Slurm ends it before its programs have started
};

/// How long nodes wait for each other. The first of the step decides, after at most `first`; if it does not, the others
/// do after `others`.
struct AgreementLimits {
  std::chrono::milliseconds first{10'000};
  std::chrono::milliseconds others{12'000};
};

/// On one node loopback. Else nodes tell each other their candidates, and use what World::init would choose
/// (topology::agree). Without a store, and where a node says nothing in time, each uses what routes to the others.
NetworkChoice choose_network(const PlanQuestion& question, const base::Environment& environment);

/// Between nodes. @param own candidates; may be empty. @param nodes of the step in its order, each once.
NetworkChoice choose_between_nodes(const topology::CandidateSearch& own, const PlanQuestion& question,
                                   const std::vector<std::string>& nodes, const AgreementLimits& limits = {});

}  // namespace ddp::srun_plugin
