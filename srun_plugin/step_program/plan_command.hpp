// ddp-step plan: where the tasks of this node go, by the topology room's rules.
#pragma once

#include "base/env_table.hpp"
#include "node_plan.hpp"

namespace ddp {
class Topology;
}

namespace ddp::srun_plugin {

/// Pure but for the network interfaces of this host, which it reads when the step has several nodes.
/// Throws Error for a question that makes no sense.
NodePlan make_node_plan(const Topology& topology, const PlanQuestion& question, const base::Environment& environment);

/// Reads a PlanQuestion from standard input to its end and writes a NodePlan to standard output. Returns the exit
/// status; an error is one line on standard error.
int answer_plan();

}  // namespace ddp::srun_plugin
