#include <utility>

#include <fmt/format.h>

#include <ddp/comm_hook.hpp>
#include <ddp/comm_hooks.hpp>

#include "base/errors.hpp"
#include "collectives/reduce_kernels.hpp"
#include "reducer/hooks/recast.hpp"

namespace ddp {
namespace {

class AllReduceHook final : public CommHook {
 public:
  explicit AllReduceHook(ReduceOp op) : op_(op) {}
  std::string name() const override {
    return op_ == ReduceOp::avg ? "all_reduce" : fmt::format("all_reduce, {}", to_string(op_));
  }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (op_ != ReduceOp::avg || bucket.buffer.device().type == DeviceType::cuda)
      return hooks::exchange(bucket, op_, group);
    collectives::divide(bucket.buffer.data(), bucket.buffer.dtype(), bucket.buffer.numel(), group.size());
    return hooks::exchange(bucket, ReduceOp::sum, group);
  }
  bool serves_cuda() const override { return true; }

 private:
  const ReduceOp op_;
};

class NoopHook final : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  BucketExchange start(const GradientBucket& /*stays*/, ProcessGroup& /*unused*/) override {
    return [] {};
  }
  bool serves_cuda() const override { return true; }
};

void check_wire(DType wire) {
  if (wire == DType::float16 || wire == DType::bfloat16) return;
  base::throw_invalid_argument("making a hook that compresses gradients",
                               fmt::format("{} is not a type for the wire", to_string(wire)),
                               "use float16 or bfloat16");
}

class CompressWrapper final : public CommHook {
 public:
  CompressWrapper(DType wire, std::shared_ptr<CommHook> inner)
      : wire_(wire), inner_(inner ? std::move(inner) : all_reduce_hook()) {
    check_wire(wire);
    if (inner_->takes_leaves()) {
      base::throw_invalid_argument("making a hook that compresses gradients",
                                   fmt::format("'{}' adds gradients up without loss", inner_->name()),
                                   "use it alone: what is rounded before depends on the number of ranks");
    }
  }
  std::string name() const override { return fmt::format("{} of {}", inner_->name(), to_string(wire_)); }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (bucket.buffer.dtype() != DType::float32) return inner_->start(bucket, group);
    GradientBucket small = hooks::recast(bucket, memory_, wire_);
    BucketExchange exchange = inner_->start(small, group);
    return [bucket, small = std::move(small), exchange = std::move(exchange)] {
      exchange();
      hooks::cast(*bucket.executor, small.buffer, bucket.buffer);
    };
  }
  void join_group(ProcessGroup& group) override {
    memory_.clear();
    inner_->join_group(group);
  }
  void end_step(bool complete) noexcept override { inner_->end_step(complete); }
  bool needs_all_parameters() const override { return inner_->needs_all_parameters(); }
  bool serves_cuda() const override { return inner_->serves_cuda(); }

 private:
  DType wire_;
  std::shared_ptr<CommHook> inner_;
  hooks::BucketCopies memory_;
};

class CompressHook final : public CommHook {
 public:
  explicit CompressHook(DType wire) : wire_(wire) { check_wire(wire); }
  std::string name() const override { return fmt::format("{} compression", to_string(wire_)); }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (bucket.buffer.dtype() != DType::float32) return plain_.start(bucket, group);
    // divided before it is rounded: gradients up to 65504 times the number of ranks fit into float16
    const GradientBucket small = hooks::recast(bucket, memory_, wire_, group.size());
    return [bucket, small, exchange = hooks::exchange(small, ReduceOp::sum, group)] {
      exchange();
      hooks::cast(*bucket.executor, small.buffer, bucket.buffer);
    };
  }
  void join_group(ProcessGroup& /*another*/) override { memory_.clear(); }
  bool serves_cuda() const override { return true; }

 private:
  DType wire_;
  AllReduceHook plain_{ReduceOp::avg};
  hooks::BucketCopies memory_;
};

}  // namespace

void CommHook::join_group(ProcessGroup& /*unused*/) {}
void CommHook::end_step(bool /*unused*/) noexcept {}
void CommHook::add_leaf(const GradientBucket& /*unused*/) {}
std::shared_ptr<CommHook> all_reduce_hook() { return reduce_hook(ReduceOp::avg); }
std::shared_ptr<CommHook> reduce_hook(ReduceOp op) { return std::make_shared<AllReduceHook>(op); }
std::shared_ptr<CommHook> compress_hook(DType wire) { return std::make_shared<CompressHook>(wire); }
std::shared_ptr<CommHook> compress_wrapper(DType wire, std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressWrapper>(wire, std::move(inner));
}
std::shared_ptr<CommHook> noop_hook() { return std::make_shared<NoopHook>(); }

// The optimizer's work on a bucket's parameters, done while later buckets travel.

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
