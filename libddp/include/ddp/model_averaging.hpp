// Averages of parameters over ranks that train apart: the other half of post_local_sgd_hook.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// The subgroup of the ranks that give the same @p color, such as the number of their node. Collective.
ProcessGroup split_group(ProcessGroup& group, std::int64_t color);

/// Every tensor becomes its average over the group. Collective.
void average_parameters(ProcessGroup& group, std::span<const TensorView> parameters);

/// Averages after every period-th step from warmup_steps on, as PyTorch's PeriodicModelAverager. Call it after each
/// step of the optimizer, on all ranks.
class PeriodicModelAverager {
 public:
  /// Throws Error(invalid_argument) when @p period is 0.
  PeriodicModelAverager(ProcessGroup group, std::uint64_t period, std::uint64_t warmup_steps = 0);
  /// Collective in those steps in which it averages.
  void average_parameters(std::span<const TensorView> parameters);
  std::uint64_t step() const noexcept { return step_; }  ///< calls of average_parameters() so far

 private:
  ProcessGroup group_;
  std::uint64_t period_;
  std::uint64_t warmup_steps_;
  std::uint64_t step_ = 0;
};

/// Averages over larger groups less often, as PyTorch's HierarchicalModelAverager.
class HierarchicalModelAverager {
 public:
  /// How often groups of so many ranks average, in steps.
  struct Level {
    std::uint64_t period;  ///< steps between two averages
    int group_size;        ///< ranks
  };
  /// Collective. @param levels ascending in both; the last one's groups are the whole group, the others' are
  /// consecutive ranks, and their size divides the group's. Throws Error(invalid_argument) otherwise.
  HierarchicalModelAverager(ProcessGroup group, std::span<const Level> levels, std::uint64_t warmup_steps = 0);
  /// Over the largest groups whose period divides the number of steps so far; none: does nothing.
  void average_parameters(std::span<const TensorView> parameters);
  std::uint64_t step() const noexcept { return step_; }  ///< calls of average_parameters() so far

 private:
  std::vector<std::pair<std::uint64_t, ProcessGroup>> groups_;  ///< with their period
  std::uint64_t warmup_steps_;
  std::uint64_t step_ = 0;
};

}  // namespace ddp
