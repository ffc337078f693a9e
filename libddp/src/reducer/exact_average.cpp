// A hook that averages in integers, whose sums do not depend on the order of the terms.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hook.hpp>

#include "base/errors.hpp"
#include "collectives/backend.hpp"
#include "kernels/copies.hpp"
#include "reducer/hooks/recast.hpp"

namespace ddp {
namespace {

constexpr auto kAveragingExactly = "averaging gradients exactly";

kernels::Format exact_format(DType type) {
  switch (type) {
    case DType::float32: return kernels::Format::float32;
    case DType::float64: return kernels::Format::float64;
    case DType::float16: return kernels::Format::float16;
    case DType::bfloat16: return kernels::Format::bfloat16;
    default:
      base::throw_invalid_argument(kAveragingExactly, fmt::format("{} is not a floating-point type", to_string(type)),
                                   "use no hook for integers");
  }
}

/// The sums of a bucket's gradients, as they are sent: of each element two words, then one for each gradient (how many
/// values have no place in a sum), then the number of leaves.
struct ExactSums {
  std::shared_ptr<void> memory;
  std::shared_ptr<TensorExecutor> executor;  ///< works on them
  std::vector<std::size_t> parameters;
  std::vector<std::int64_t*> sums;  ///< by parameter
  std::int64_t* broken;             ///< the first parameter's
  std::int64_t leaves = 0;          ///< which are in the sums

  std::int64_t* words() const { return static_cast<std::int64_t*>(memory.get()); }
  std::int64_t* sent_leaves() const { return broken + parameters.size(); }
  std::size_t size() const { return static_cast<std::size_t>(sent_leaves() + 1 - words()); }
  void clear() {
    const TensorCopy zeros{.from = nullptr, .to = words(), .count = size()};
    executor->copy({&zeros, 1}, DType::int64, DType::int64);
    leaves = 0;
  }
  std::vector<kernels::ExactTensor> tensors(const GradientBucket& bucket) const {
    std::vector<kernels::ExactTensor> tensors;
    for (std::size_t slot = 0; slot < sums.size(); ++slot) {
      const TensorView& gradient = bucket.gradients[slot];
      tensors.push_back(
          {.values = gradient.data(), .count = gradient.numel(), .sums = sums[slot], .broken = broken + slot});
    }
    return tensors;
  }
};

class ExactAverageHook final : public CommHook {
 public:
  std::string name() const override { return "exact average"; }
  bool takes_leaves() const override { return true; }
  bool serves_cuda() const override { return true; }
  void end_step(bool complete) noexcept override {
    if (complete) return;
    sums_.clear();
    former_.clear();
  }
  /// Leaves stay, but other ranks may be new, and have no memory: allocate() may be collective.
  void join_group(ProcessGroup& /*another*/) override {
    for (auto& [parameter, sums] : sums_) former_[parameter] = sums;
    sums_.clear();
  }

  void add_leaf(const GradientBucket& bucket) override { add(bucket); }

  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    const std::shared_ptr<ExactSums> sums = add(bucket);
    if (sums->leaves > kernels::kMostExactTerms / group.size()) {
      base::throw_invalid_argument(kAveragingExactly,
                                   fmt::format("{} ranks have {} leaves each", group.size(), sums->leaves),
                                   fmt::format("add up to {} of all ranks", kernels::kMostExactTerms));
    }
    kernels::Executor& launcher = collectives::KernelLauncher::of(*bucket.executor);
    const std::array leaves{kernels::Part{.data = sums->sent_leaves(), .count = 1}};
    kernels::fill(launcher, leaves, std::as_bytes(std::span{&sums->leaves, 1}));
    const TensorView message{
        sums->words(), DType::int64, {static_cast<std::int64_t>(sums->size())}, bucket.buffer.device()};
    const Work work = group.all_reduce(message, ReduceOp::sum, hooks::options_for(bucket, sums->memory));
    return [bucket, sums, work] {
      bucket.executor->wait_for(work);
      kernels::exact_means(collectives::KernelLauncher::of(*bucket.executor), sums->tensors(bucket),
                           exact_format(bucket.buffer.dtype()), sums->sent_leaves());
      sums->clear();
    };
  }

 private:
  using ByParameter = std::map<std::size_t, std::shared_ptr<ExactSums>>;

  std::shared_ptr<ExactSums> add(const GradientBucket& bucket) {
    const kernels::Format format = exact_format(bucket.buffer.dtype());
    kernels::Executor& launcher = collectives::KernelLauncher::of(*bucket.executor);
    const std::shared_ptr<ExactSums> sums = take(bucket);
    kernels::add_exactly(launcher, sums->tensors(bucket), format);
    ++sums->leaves;
    return sums;
  }

  std::shared_ptr<ExactSums> take(const GradientBucket& bucket) {
    const auto found = sums_.find(bucket.parameters.front());
    if (found != sums_.end() && found->second->parameters == bucket.parameters) return found->second;
    auto sums = std::make_shared<ExactSums>();
    const std::size_t words = 2 * bucket.buffer.numel() + bucket.parameters.size() + 1;
    sums->memory = bucket.allocate(words * sizeof(std::int64_t));
    sums->executor = bucket.executor;
    sums->parameters = bucket.parameters;
    std::int64_t* place = sums->words();
    for (const TensorView& gradient : bucket.gradients) {
      sums->sums.push_back(place);
      place += 2 * gradient.numel();
    }
    sums->broken = place;
    sums->clear();
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      move_leaves(former_, bucket, slot, *sums);
      move_leaves(sums_, bucket, slot, *sums);
      sums_[bucket.parameters[slot]] = sums;
    }
    return sums;
  }

  /// Buckets have been rebuilt, or are in another group.
  static void move_leaves(ByParameter& from, const GradientBucket& bucket, std::size_t slot, ExactSums& to) {
    const auto found = from.find(bucket.parameters[slot]);
    if (found == from.end()) return;
    const ExactSums& old = *found->second;
    if (old.leaves > 0) {
      const auto old_slot =
          static_cast<std::size_t>(std::ranges::find(old.parameters, bucket.parameters[slot]) - old.parameters.begin());
      const std::array copies{
          TensorCopy{.from = old.sums[old_slot], .to = to.sums[slot], .count = 2 * bucket.gradients[slot].numel()},
          TensorCopy{.from = old.broken + old_slot, .to = to.broken + slot, .count = 1}};
      to.executor->copy(copies, DType::int64, DType::int64);
      to.leaves = old.leaves;  // each step adds one to all parameters
      // its memory is freed when the former executor is done with it
      if (old.executor != to.executor) to.executor->hold_back(*old.executor->stream());
    }
    from.erase(found);
  }

  ByParameter sums_;
  ByParameter former_;  ///< of another group, until buckets take their places
};

}  // namespace

std::shared_ptr<CommHook> exact_average_hook() { return std::make_shared<ExactAverageHook>(); }

}  // namespace ddp
