// Who a task is, by what Slurm says in its environment.
#pragma once

#include <cstdint>
#include <string>

#include "base/env_table.hpp"

namespace ddp::srun_plugin {

/// base::SlurmStep of a task, complete, and where srun is.
struct TaskFacts {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::string step;       ///< "1234.0"
  std::string node_list;  ///< of the step
  std::string node_name;
  std::string srun_address;  ///< numeric, as the node sees the host of srun
};

/// @param local_tasks of this node, as SPANK knows them.
/// Of a step with several components, numbers are those of the whole step. Throws Error(unavailable) naming the
/// variable that is missing.
TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks);

}  // namespace ddp::srun_plugin
