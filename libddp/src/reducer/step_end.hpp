// The end of a step, for a hook that keeps something from step to step, and for a device that works on gradients.
#pragma once

#include <ddp/comm_hook.hpp>

#include "reducer/bucket_set.hpp"

namespace ddp::reducer {

/// Tells them that a step has ended: failed, unless it is set complete before.
class StepEnd {
 public:
  StepEnd(CommHook* hook, BucketSet& buckets) noexcept : hook_(hook), buckets_(buckets) {}
  StepEnd(const StepEnd&) = delete;
  StepEnd& operator=(const StepEnd&) = delete;
  ~StepEnd() {
    if (!complete) buckets_.abandon();
    if (hook_ != nullptr) hook_->end_step(complete);
  }
  bool complete = false;

 private:
  CommHook* hook_;
  BucketSet& buckets_;
};

}  // namespace ddp::reducer
