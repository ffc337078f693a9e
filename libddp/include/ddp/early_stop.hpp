// Ends training in the same step on all ranks: when a value stops improving, or on request.
#pragma once

#include <atomic>
#include <optional>

#include <ddp/process_group.hpp>

namespace ddp {

/// When EarlyStop stops.
struct EarlyStopOptions {
  int patience = 5;               ///< stop after this many values in a row without improvement
  double least_gain = 0;          ///< smaller improvements are ignored
  bool larger_is_better = false;  ///< true: for an accuracy; false: for a loss
};

/// A rank that ends its loop on its own strands the others in a collective that never ends. With EarlyStop, one rank
/// that wants to stop stops all.
class EarlyStop {
 public:
  /// No communication; give all ranks equal options.
  explicit EarlyStop(EarlyStopOptions options = {}) : options_(options) {}

  /// Records a value (a validation loss). @return whether all stop now, equal on all ranks. NaN is never an
  /// improvement. Collective, an all_reduce of 4 bytes. Not thread-safe.
  bool update(ProcessGroup& group, double value);
  /// The same without a value, for each step: whether any rank was asked to stop.
  bool agree(ProcessGroup& group);

  /// Makes the next update() or agree() stop all ranks. Thread-safe and async-signal-safe: for the handler of the
  /// signal that Slurm sends before a job ends (--signal).
  void request() noexcept { requested_ = true; }

  std::optional<double> best() const noexcept { return best_; }  ///< of this rank's values; nothing before the first
  /// Values since the best one.
  int stale() const noexcept { return stale_; }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free);

  EarlyStopOptions options_;
  std::atomic<bool> requested_ = false;
  std::optional<double> best_;
  int stale_ = 0;
};

}  // namespace ddp
