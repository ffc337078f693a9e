// Averages over fewer ranks after some steps (Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local SGD",
// ICLR 2020), as PyTorch's post_localSGD_hook.
#include <utility>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "reducer/hooks/iteration.hpp"

namespace ddp {
namespace {

class PostLocalSgdHook final : public CommHook {
 public:
  PostLocalSgdHook(std::uint64_t start_iteration, std::optional<ProcessGroup> subgroup)
      : start_iteration_(start_iteration), subgroup_(std::move(subgroup)) {}

  std::string name() const override {
    return fmt::format("post-local SGD: from step {}{}", start_iteration_, subgroup_ ? ", subgroups" : "");
  }
  void join_group(ProcessGroup& group) override { iteration_.agree(group); }
  void end_step(bool complete) noexcept override {
    if (complete) iteration_.advance();
  }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (!iteration_.reached(start_iteration_)) return average_->start(bucket, group);
    if (subgroup_) return average_->start(bucket, *subgroup_);
    return [] {};
  }
  bool serves_cuda() const override { return true; }

 private:
  const std::uint64_t start_iteration_;
  std::optional<ProcessGroup> subgroup_;
  hooks::Iteration iteration_;
  std::shared_ptr<CommHook> average_ = all_reduce_hook();
};

}  // namespace

std::shared_ptr<CommHook> post_local_sgd_hook(std::uint64_t start_iteration, std::optional<ProcessGroup> subgroup) {
  return std::make_shared<PostLocalSgdHook>(start_iteration, std::move(subgroup));
}

}  // namespace ddp
