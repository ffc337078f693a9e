// ddp-step plan: where the tasks of this node go.
#pragma once

#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "step_program/network_choice.hpp"
#include "task_side/node_plan.hpp"

namespace ddp {
class Topology;
}

namespace ddp::srun_plugin {

/// Pure. Throws Error for an invalid question.
NodePlan make_node_plan(const Topology& topology, const PlanQuestion& question, const NetworkChoice& network,
                        const base::Environment& environment, const std::vector<base::NcclConf>& nccl_conf = {});

/// The interface alone, for a question without resources.
NodePlan make_network_plan(const PlanQuestion& question, const NetworkChoice& network,
                           const base::Environment& environment, const std::vector<base::NcclConf>& nccl_conf = {});

/// Reads a PlanQuestion from standard input to its end and writes a NodePlan to standard output. Returns the exit
/// status; an error is one line on standard error.
int answer_plan();

}  // namespace ddp::srun_plugin
