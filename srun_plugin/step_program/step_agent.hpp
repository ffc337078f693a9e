// ddp-step agent: a node's part in a step of `srun --ddp`. Where ddprun's agent starts ranks, this one observes the
// tasks that Slurm starts and ends; it speaks the same control messages with the coordinator beside srun.
#pragma once

namespace ddp::srun_plugin {

/// Reads a NodeQuestion and NodeResources from standard input, writes a NodeAnswer to standard output and returns the
/// exit status; an error is one line on standard error. What it leaves behind, as no child of the task, is the agent:
/// it reaches the coordinator, learns the network and where the ranks' store is, or serves that, and tells how the
/// node's tasks do until Slurm's channel (EndChannel) or the coordinator ends. So a machine that hangs while it is read
/// costs the plan, and not the node.
int answer_node();

}  // namespace ddp::srun_plugin
