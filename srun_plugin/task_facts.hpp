// Who a task is, by what Slurm says in its environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/env_table.hpp"

namespace ddp::srun_plugin {

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
  bool has_pmi = false;      ///< PMIx or PMI-2
};

/// @param local_tasks of this node, as SPANK knows them.
/// Of a step with several components, numbers are those of the whole step. Throws Error(unavailable) naming the
/// variable that is missing.
TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks);

/// Whether these are tasks of a step that the user started: neither the batch script nor an interactive shell of
/// salloc.
bool is_user_step(std::uint32_t step_id);

}  // namespace ddp::srun_plugin
