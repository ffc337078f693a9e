// Averages over fewer ranks after some steps (Lin, Stich, Patel, Jaggi: "Don't Use Large Mini-Batches, Use Local SGD",
// ICLR 2020), as PyTorch's post_localSGD_hook.
#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/batch.hpp>
#include <ddp/comm_hooks.hpp>
#include <ddp/model_averaging.hpp>

#include "base/errors.hpp"
#include "reducer/hooks/parameter_memory.hpp"

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

ProcessGroup split_group(ProcessGroup& group, std::int64_t color) {
  std::vector<std::int64_t> own{color};
  std::vector<std::int64_t> colors(static_cast<std::size_t>(group.size()));
  group.all_gather(own, colors).wait();
  std::optional<ProcessGroup> mine;
  for (const std::int64_t each : std::set<std::int64_t>(colors.begin(), colors.end())) {
    std::vector<int> members;
    for (std::size_t rank = 0; rank < colors.size(); ++rank) {
      if (colors[rank] == each) members.push_back(static_cast<int>(rank));
    }
    auto made = group.new_group(members);
    if (each == color) mine = std::move(made);
  }
  return std::move(*mine);
}

void average_parameters(ProcessGroup& group, std::span<const TensorView> parameters) {
  if (group.size() == 1) return;
  Batch batch(group);
  for (const TensorView& parameter : parameters) {
    if (parameter.numel() > 0) batch.all_reduce(parameter, ReduceOp::avg);
  }
  if (batch.size() > 0) batch.start().wait();
}

PeriodicModelAverager::PeriodicModelAverager(ProcessGroup group, std::uint64_t period, std::uint64_t warmup_steps)
    : group_(std::move(group)), period_(period), warmup_steps_(warmup_steps) {
  if (period == 0) base::throw_invalid_argument("making a model averager", "its period is 0", "use 1 or more steps");
}

void PeriodicModelAverager::average_parameters(std::span<const TensorView> parameters) {
  const std::uint64_t step = step_++;
  if (step < warmup_steps_ || (step - warmup_steps_) % period_ != 0) return;
  ddp::average_parameters(group_, parameters);
}

HierarchicalModelAverager::HierarchicalModelAverager(ProcessGroup group, std::span<const Level> levels,
                                                     std::uint64_t warmup_steps)
    : warmup_steps_(warmup_steps) {
  const auto refuse = [](std::string cause) {
    base::throw_invalid_argument("making a hierarchical model averager", std::move(cause),
                                 "give periods and group sizes in ascending order, the whole group last");
  };
  if (levels.empty() || levels.back().group_size != group.size()) {
    refuse(fmt::format("no last level has all {} ranks", group.size()));
  }
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const Level& level = levels[i];
    if (level.period == 0) refuse("a period is 0");
    if (level.group_size < 1 || group.size() % level.group_size != 0) {
      refuse(fmt::format("groups of {} do not divide {} ranks", level.group_size, group.size()));
    }
    if (i > 0 && (level.period <= levels[i - 1].period || level.group_size <= levels[i - 1].group_size)) {
      refuse(fmt::format("period {} of {} ranks is not above the one before it", level.period, level.group_size));
    }
  }
  for (const Level& level : levels) {
    groups_.emplace_back(
        level.period, level.group_size == group.size() ? group : split_group(group, group.rank() / level.group_size));
  }
}

void HierarchicalModelAverager::average_parameters(std::span<const TensorView> parameters) {
  const std::uint64_t step = step_++;
  if (step < warmup_steps_) return;
  const auto due =
      std::find_if(groups_.rbegin(), groups_.rend(), [&](const auto& each) { return step % each.first == 0; });
  if (due != groups_.rend()) ddp::average_parameters(due->second, parameters);
}

}  // namespace ddp
