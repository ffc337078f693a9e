// What `srun --ddp` gives a task on top of what Slurm gives it. A launcher inside that task must not take it for the
// user's: it would give all its ranks the place of one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::base {

/// In the task's environment.
inline constexpr const char* kStepSettingsVariable = "SLURM_DDP_SETTINGS";

struct StepSettings {
  std::string step;                ///< "1234.0": the binding is that of its tasks only, not of steps that they start
  std::string cpus;                ///< that the task had before it was bound, as CpuSet writes them; empty: not bound
  std::vector<std::string> names;  ///< of the variables that were set

  friend bool operator==(const StepSettings&, const StepSettings&) = default;
};

/// "1234.0:0-15:DDP_BIND,OMP_NUM_THREADS"
std::string encode(const StepSettings& settings);
/// Nothing for what encode() cannot have written.
std::optional<StepSettings> parse_step_settings(std::string_view text);

/// Removes these variables from the environment of this process, which must have no other thread yet (unsetenv(3)), and
/// returns what they were, without processors in a task of another step; nothing outside of `srun --ddp`.
std::optional<StepSettings> drop_step_settings();

}  // namespace ddp::base
