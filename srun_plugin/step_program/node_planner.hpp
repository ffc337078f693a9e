// What the tasks of this node get: cores, devices and settings of the machine, and the network interface over which
// they reach other nodes. Pure, but for what reads this host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "task_side/node_questions.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp {
class Topology;
}

namespace ddp::srun_plugin {

/// What this node can say of its network before it knows the others'.
struct OwnNetwork {
  topology::CandidateSearch search{};  ///< no candidates: none is chosen
  bool several_nodes = false;
  bool first_node = false;             ///< of the step's list: what is wrong with a step is said once
  std::vector<std::string> remarks{};  ///< for --ddp-verbose
};
OwnNetwork read_own_network(const NodeQuestion& question, const base::Environment& environment);

/// What was chosen for this node, with what is to be said of it.
struct NetworkChoice {
  topology::SocketInterface interface {};  ///< without a name: none
  std::vector<std::string> remarks{};      ///< for --ddp-verbose
  std::string warning{};                   ///< for the step; at most one of its nodes has one
};
/// @param agreed by all nodes; nothing, or no name: this node uses what routes to the others.
NetworkChoice choose_network(const OwnNetwork& own, const std::optional<topology::SocketInterface>& agreed,
                             const base::Environment& environment);

/// What the agent of this node tells the process that makes the plan.
struct NodeFindings {
  Meeting meeting{};
  std::string interface {};
  std::string interface_address{};
  std::string interface_reason{};
  std::vector<std::string> remarks{};
  std::string warning{};
};
constexpr auto description(const NodeFindings*) {
  using F = NodeFindings;
  return base::describe({"findings of a node's agent", kNodeVersion}, base::fields<&F::meeting>(),
                        base::fields<&F::interface>(), base::fields<&F::interface_address>(),
                        base::fields<&F::interface_reason>(), base::fields<&F::remarks>(), base::fields<&F::warning>());
}

/// @param topology of this machine; nothing: @p resources are empty, so that there is the interface alone.
/// Throws Error for invalid resources.
NodeAnswer make_answer(const Topology* topology, const NodeQuestion& question, const NodeResources& resources,
                       const NodeFindings& findings, const base::Environment& environment,
                       const std::vector<base::NcclConf>& nccl_conf = {});

}  // namespace ddp::srun_plugin
