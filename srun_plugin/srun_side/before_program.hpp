// What happens in each task before its program starts, where srun was asked for it: the environments of all tasks are
// dumped, and the nodes examined. ddp-step has ddp-info do both; the tasks meet in the step's store.
#pragma once

#include <string>
#include <string_view>

#include "base/env_table.hpp"

namespace ddp::srun_plugin {

struct BeforeProgram {
  bool doctor = false;
  std::string dump = {};  ///< file, or "stderr"; empty: none

  bool wanted() const { return doctor || !dump.empty(); }
  friend bool operator==(const BeforeProgram&, const BeforeProgram&) = default;
};

/// From srun to its tasks, which remove it. Not part of the ticket, for a file's name may be long.
inline constexpr const char* kBeforeVariable = "SLURM_DDP_BEFORE";
std::string encode(const BeforeProgram& before);
/// Nothing is wanted where encode() has not written it.
BeforeProgram parse_before(std::string_view text);

/// @param program helper= of plugstack.conf. @param name by which the task's program will be executed. @param
/// environment that it will have
/// @return whether the program may start: not where the nodes have errors, which were said. Throws Error where it could
/// not be tried.
bool run_before(const std::string& program, const BeforeProgram& before, const std::string& name,
                const base::Environment& environment);

}  // namespace ddp::srun_plugin
