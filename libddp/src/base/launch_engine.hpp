// Which engine started this process as one of its tasks, by the variables that it leaves, and the task's place.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/env_table.hpp"

namespace ddp::base {

/// A task of mpirun, mpiexec, prun, jsrun or flux run; Slurm's are SlurmStep's. What the variables do not say is empty.
struct EngineTask {
  std::string_view engine;         ///< "Hydra"
  std::string_view pmi_command{};  ///< how to start tasks there that can find each other: "flux run -o pmi=simple"
  std::optional<int> rank{};
  std::optional<int> tasks{};
  std::optional<int> tasks_here{};  ///< on this node

  /// The engine whose task this is: where several are nested, the innermost as far as their variables show it. Nothing
  /// for a worker of torchrun or ddprun, and outside. Throws Error(invalid_argument) for a number that is none.
  static std::optional<EngineTask> read(const Environment& environment);
};

/// Whether a variable says which task of such an engine a process is: not for what the task starts.
bool is_engine_identity(std::string_view name);

}  // namespace ddp::base
