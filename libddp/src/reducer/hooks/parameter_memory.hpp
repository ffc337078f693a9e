// What hooks keep of each parameter from step to step, such as what compression has left out: floats where its
// gradient's bucket is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <ddp/comm_hook.hpp>
#include <ddp/process_group.hpp>

namespace ddp::hooks {

/// By parameter, so that it stays when buckets are rebuilt.
class ParameterMemory {
 public:
  struct Entry {
    std::size_t parameter;
    std::size_t count;  ///< floats
  };
  /// For the entries of a call, one after the other.
  struct Places {
    std::vector<float*> now;         ///< to be written by every step
    std::vector<const float*> kept;  ///< what the last step has written, here or elsewhere; null: none has
    std::shared_ptr<void> memory;    ///< of what is to be written; null if that is nothing
    /// For what is kept elsewhere. On a device it may go when all work that reads it is in the executor's stream.
    std::vector<std::shared_ptr<void>> former;
  };

  /// In CommHook::start. All ranks give the same entries.
  Places take(const GradientBucket& bucket, std::span<const Entry> entries);
  void clear() noexcept { kept_.clear(); }

 private:
  struct Kept {
    std::shared_ptr<void> memory;
    float* place = nullptr;
    std::size_t count = 0;
    Device device;
  };

  bool in_place(std::span<const Entry> entries, Device device) const;

  std::map<std::size_t, Kept> kept_;
};

// ---- The number of a step that a hook counts, equal on all ranks.

class Iteration {
 public:
  bool reached(std::uint64_t step) const noexcept { return now_ >= step; }
  void advance() noexcept { ++now_; }
  /// Collective: takes the largest of all ranks, some of which may have missed the end of the last step.
  void agree(ProcessGroup& group) {
    if (group.size() == 1) return;
    std::vector<std::int64_t> latest{static_cast<std::int64_t>(now_)};
    group.all_reduce(latest, ReduceOp::max).wait();
    now_ = static_cast<std::uint64_t>(latest[0]);
  }

 private:
  std::uint64_t now_ = 0;
};

}  // namespace ddp::hooks
