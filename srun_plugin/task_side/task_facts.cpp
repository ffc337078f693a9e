#include "task_side/task_facts.hpp"

#include <optional>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/slurm_step.hpp"

namespace ddp::srun_plugin {
namespace {

int known(std::optional<int> number, const char* name) {
  if (number) return *number;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "finding out which task of the step this is",
               .cause = fmt::format("{} is not set", name)}};
}

}  // namespace

TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks) {
  const auto step = base::SlurmStep::read(environment);
  TaskFacts facts{.rank = known(step.rank, "SLURM_PROCID"),
                  .world_size = known(step.num_tasks, "SLURM_STEP_NUM_TASKS"),
                  .local_rank = known(step.local_rank, "SLURM_LOCALID"),
                  .local_world_size = static_cast<int>(local_tasks),
                  .node_rank = known(step.node_rank, "SLURM_NODEID"),
                  .num_nodes = known(step.num_nodes, "SLURM_STEP_NUM_NODES"),
                  .step = step.name,
                  .node_list = step.node_list,
                  .node_name = step.node_name,
                  .srun_address = environment.raw("SLURM_LAUNCH_NODE_IPADDR").value_or("")};
  if (facts.srun_address.empty()) facts.srun_address = environment.raw("SLURM_SRUN_COMM_HOST").value_or("");
  return facts;
}

}  // namespace ddp::srun_plugin
