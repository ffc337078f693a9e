// What `srun --ddp` gives a task on top of what Slurm gives it. A launcher inside that task must not take it for the
// user's: it would give all its ranks the place of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::base {

/// In the task's environment.
inline constexpr const char* kStepSettingsVariable = "SLURM_DDP_SETTINGS";

/// What ddprun's placement gives its ranks, in the same form without step and processors: for reports only.
inline constexpr const char* kPlacedSettingsVariable = "DDPRUN_SETTINGS";

/// One that was set. What the user has set to something else since is the user's.
struct StepVariable {
  std::string name;
  std::uint32_t digest = 0;  ///< of its value

  friend bool operator==(const StepVariable&, const StepVariable&) = default;
};

/// The lower half of FNV-1a: detects changes, not forgery.
std::uint32_t value_digest(std::string_view value);

struct StepSettings {
  std::string step;    ///< "1234.0": the binding is that of its tasks only, not of steps that they start
  std::string cpus{};  ///< that the task had before it was bound, as CpuSet writes them; empty: not bound
  std::vector<StepVariable> variables{};

  friend bool operator==(const StepSettings&, const StepSettings&) = default;
};

/// "1234.0:0-15:DDP_BIND=1a2b3c4d,OMP_NUM_THREADS=350ca8af"
std::string encode(const StepSettings& settings);
/// Nothing for what encode() cannot have written.
std::optional<StepSettings> parse_step_settings(std::string_view text);

/// Removes those of these variables that are unchanged from the environment of this process, which must have no
/// other thread yet (unsetenv(3)), and returns what they were, without processors in a task of another step; nothing
/// outside of `srun --ddp`.
std::optional<StepSettings> drop_step_settings();

}  // namespace ddp::base
