// Averages of parameters over ranks that train separately: the counterpart of post_local_sgd_hook.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// The subgroup of the ranks that pass the same @p color, such as their node's number. Collective. Throws Error.
ProcessGroup split_group(ProcessGroup& group, std::int64_t color);

/// Replaces every tensor by its average over the group. Collective, with equal shapes; blocks. Throws Error.
void average_parameters(ProcessGroup& group, std::span<const TensorView> parameters);

/// Averages after every period-th step from warmup_steps on, like PyTorch's PeriodicModelAverager. Call it after each
/// optimizer step, on all ranks. Not synchronized: one thread at a time.
class PeriodicModelAverager {
 public:
  /// Throws Error(invalid_argument) if @p period is 0.
  PeriodicModelAverager(ProcessGroup group, std::uint64_t period, std::uint64_t warmup_steps = 0);
  /// Collective in the steps in which it averages; blocks. Throws Error.
  void average_parameters(std::span<const TensorView> parameters);
  std::uint64_t step() const noexcept { return step_; }  ///< calls of average_parameters() so far

 private:
  ProcessGroup group_;
  std::uint64_t period_;
  std::uint64_t warmup_steps_;
  std::uint64_t step_ = 0;
};

/// Averages over larger groups less often, like PyTorch's HierarchicalModelAverager. Not synchronized.
class HierarchicalModelAverager {
 public:
  /// How often groups of a given size average, in steps.
  struct Level {
    std::uint64_t period;  ///< steps between two averages
    int group_size;        ///< ranks
  };
  /// Collective. @param levels ascending in both members; the last level is the whole group, the others are groups of
  /// consecutive ranks whose size divides the whole group's. Throws Error(invalid_argument) otherwise.
  HierarchicalModelAverager(ProcessGroup group, std::span<const Level> levels, std::uint64_t warmup_steps = 0);
  /// Averages over the largest groups whose period divides the number of steps so far, if there are any; blocks.
  void average_parameters(std::span<const TensorView> parameters);
  std::uint64_t step() const noexcept { return step_; }  ///< calls of average_parameters() so far

 private:
  std::vector<std::pair<std::uint64_t, ProcessGroup>> groups_;  ///< with their period
  std::uint64_t warmup_steps_;
  std::uint64_t step_ = 0;
};

}  // namespace ddp
