#include "base/launch_engine.hpp"

#include <algorithm>
#include <array>

#include "base/torchrun_environment.hpp"

namespace ddp::base {
namespace {

/// Names of variables; empty: the engine has none.
struct Engine {
  std::string_view name;
  std::string_view mark;      ///< set in its tasks only
  std::string_view prefix{};  ///< with which the mark's value begins
  std::string_view rank;
  std::string_view tasks{};
  std::string_view tasks_here{};
  std::string_view command;
};

// jsrun sets Open MPI's variables, too.
constexpr std::array<Engine, 9> kEngines{
    Engine{.name = "jsrun",
           .mark = "JSM_NAMESPACE_RANK",
           .rank = "JSM_NAMESPACE_RANK",
           .tasks = "JSM_NAMESPACE_SIZE",
           .tasks_here = "JSM_NAMESPACE_LOCAL_SIZE",
           .command = "jsrun with its PMIx"},
    Engine{.name = "PALS",
           .mark = "PALS_RANKID",
           .rank = "PALS_RANKID",
           .tasks = "PMI_SIZE",
           .tasks_here = "PMI_LOCAL_SIZE",
           .command = "mpiexec --pmi=pmix"},
    Engine{.name = "Open MPI",
           .mark = "OMPI_COMM_WORLD_RANK",
           .rank = "OMPI_COMM_WORLD_RANK",
           .tasks = "OMPI_COMM_WORLD_SIZE",
           .tasks_here = "OMPI_COMM_WORLD_LOCAL_SIZE",
           .command = "mpirun"},
    Engine{.name = "PRRTE", .mark = "PMIX_NAMESPACE", .prefix = "prterun-", .rank = "PMIX_RANK", .command = "prterun"},
    Engine{.name = "PRRTE", .mark = "PMIX_NAMESPACE", .prefix = "prte-", .rank = "PMIX_RANK", .command = "prun"},
    Engine{.name = "PRRTE", .mark = "PMIX_NAMESPACE", .prefix = "prte.", .rank = "PMIX_RANK", .command = "prun"},
    Engine{.name = "Hydra",
           .mark = "MPI_LOCALNRANKS",
           .rank = "PMI_RANK",
           .tasks = "PMI_SIZE",
           .tasks_here = "MPI_LOCALNRANKS",
           .command = "mpiexec.hydra"},
    Engine{.name = "Flux",
           .mark = "FLUX_TASK_RANK",
           .rank = "FLUX_TASK_RANK",
           .tasks = "FLUX_JOB_SIZE",
           .command = "flux run -o pmi=simple"},
    Engine{.name = "a PMIx launcher", .mark = "PMIX_NAMESPACE", .rank = "PMIX_RANK", .command = "its PMIx"},
};

std::optional<int> engine_number(const Environment& environment, std::string_view name) {
  return name.empty() ? std::nullopt : environment.number(name);
}

}  // namespace

std::optional<EngineTask> EngineTask::read(const Environment& environment) {
  if (is_torchrun_worker(environment)) return std::nullopt;
  if (environment.raw("PMIX_NAMESPACE").value_or("").starts_with("slurm.pmix.")) return std::nullopt;
  const auto found = std::ranges::find_if(kEngines, [&](const Engine& engine) {
    return environment.has(engine.mark) && environment.raw(engine.mark)->starts_with(engine.prefix);
  });
  if (found == kEngines.end()) return std::nullopt;
  EngineTask task{.engine = found->name,
                  .pmi_command = found->command,
                  .rank = engine_number(environment, found->rank),
                  .tasks = engine_number(environment, found->tasks),
                  .tasks_here = engine_number(environment, found->tasks_here)};
  // Flux places tasks evenly.
  if (const auto nodes = engine_number(environment, "FLUX_JOB_NNODES"); found->name == "Flux" && nodes && task.tasks)
    task.tasks_here = (*task.tasks + std::max(*nodes, 1) - 1) / std::max(*nodes, 1);
  return task;
}

bool is_engine_identity(std::string_view name) {
  constexpr std::array<std::string_view, 5> kPrefixes{"JSM_NAMESPACE_", "PALS_RANKID", "PALS_LOCAL", "FLUX_TASK_",
                                                      "HYDI_CONTROL_FD"};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace ddp::base
