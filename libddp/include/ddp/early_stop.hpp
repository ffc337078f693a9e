// The end of a training that all ranks reach in the same step: when a number no longer gets better, or on request.
#pragma once

#include <atomic>
#include <optional>

#include <ddp/process_group.hpp>

namespace ddp {

/// When EarlyStop stops.
struct EarlyStopOptions {
  int patience = 5;               ///< stops after so many values in a row without improvement
  double least_gain = 0;          ///< smaller improvements are ignored
  bool larger_is_better = false;  ///< as for an accuracy; false: as for a loss
};

/// Ranks that decide alone to leave their loop leave the others in a collective that never ends. Here one that wants to
/// stop stops all.
class EarlyStop {
 public:
  /// No communication; give all ranks equal options.
  explicit EarlyStop(EarlyStopOptions options = {}) : options_(options) {}

  /// Notes a value (a validation's loss): whether all stop now, equal on all ranks. NaN is never better. Collective, an
  /// all_reduce of 4 bytes. No thread-safety.
  bool update(ProcessGroup& group, double value);
  /// The same without a value, in each step: whether any rank has been asked.
  bool agree(ProcessGroup& group);

  /// Lets the next update() or agree() stop all ranks. Thread-safe and async-signal-safe: for the handler of the signal
  /// that Slurm sends before a job's end (--signal).
  void request() noexcept { requested_ = true; }

  std::optional<double> best() const noexcept { return best_; }  ///< of this rank's values
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
