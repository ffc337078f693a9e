// ddp-step plan: where the tasks of this node go.
#pragma once

#include "base/env_table.hpp"
#include "node_plan.hpp"

namespace ddp {
class Topology;
}

namespace ddp::srun_plugin {

/// Pure but for the network interfaces of this host. Throws Error for an invalid question.
NodePlan make_node_plan(const Topology& topology, const PlanQuestion& question, const base::Environment& environment);

/// Reads a PlanQuestion from standard input to its end and writes a NodePlan to standard output. Returns the exit
/// status; an error is one line on standard error.
int answer_plan();

}  // namespace ddp::srun_plugin
