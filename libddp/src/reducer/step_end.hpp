// The end of a step, for a hook that keeps something from step to step.
#pragma once

#include <ddp/comm_hook.hpp>

namespace ddp::reducer {

/// Tells a hook that a step has ended: failed, unless it is set complete before.
class StepEnd {
 public:
  explicit StepEnd(CommHook* hook) noexcept : hook_(hook) {}
  StepEnd(const StepEnd&) = delete;
  StepEnd& operator=(const StepEnd&) = delete;
  ~StepEnd() {
    if (hook_ != nullptr) hook_->end_step(complete);
  }
  bool complete = false;

 private:
  CommHook* hook_;
};

}  // namespace ddp::reducer
