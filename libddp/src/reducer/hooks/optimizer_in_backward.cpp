// The optimizer's work on a bucket's parameters, done while later buckets travel.
#include <utility>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "base/errors.hpp"

namespace ddp {
namespace {

class OptimizerHook final : public CommHook {
 public:
  OptimizerHook(OptimizerStep step, std::shared_ptr<CommHook> inner)
      : step_(std::move(step)), inner_(inner ? std::move(inner) : all_reduce_hook()) {
    if (inner_->takes_leaves()) {
      base::throw_invalid_argument("making a hook that calls the optimizer",
                                   fmt::format("'{}' takes the gradients of no_sync", inner_->name()),
                                   "step after finalize instead");
    }
  }
  std::string name() const override { return inner_->name() + ", then the optimizer"; }
  void join_group(ProcessGroup& group) override { inner_->join_group(group); }
  void end_step(bool complete) noexcept override { inner_->end_step(complete); }
  bool needs_all_parameters() const override { return true; }
  bool serves_cuda() const override { return inner_->serves_cuda(); }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    return [this, bucket, exchange = inner_->start(bucket, group)] {
      exchange();
      // in the program's stream, which has read the parameters for the backward pass
      if (bucket.program) bucket.executor->hold_back(*bucket.program);
      for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
        step_(bucket.parameters[slot], bucket.gradients[slot]);
      }
      // the bucket is freed when the executor is done with it
      if (bucket.program) bucket.executor->wait_for(bucket.executor->now_in(*bucket.program));
    };
  }

 private:
  OptimizerStep step_;
  std::shared_ptr<CommHook> inner_;
};

}  // namespace

std::shared_ptr<CommHook> optimizer_hook(OptimizerStep step, std::shared_ptr<CommHook> inner) {
  return std::make_shared<OptimizerHook>(std::move(step), std::move(inner));
}

}  // namespace ddp
