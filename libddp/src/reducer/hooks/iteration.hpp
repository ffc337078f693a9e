// The number of a step that a hook counts, equal on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp::hooks {

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
