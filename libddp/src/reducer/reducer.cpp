#include <ddp/reducer.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/invalid_argument.hpp"
#include "reducer/bucket.hpp"
#include "reducer/bucket_plan.hpp"
#include "reducer/parameter_check.hpp"

namespace ddp {
namespace {

using Clock = Deadline::Clock;

void check_parameters(const std::vector<Parameter>& parameters) {
  constexpr auto kAttempted = "making a Reducer";
  if (parameters.empty())
    base::throw_invalid_argument(kAttempted, "there are no parameters", "pass those that need a gradient");
  for (const Parameter& parameter : parameters) {
    const auto on_cpu = [](const TensorView& tensor) { return tensor.device().type == DeviceType::cpu; };
    if (!on_cpu(parameter.value) || !on_cpu(parameter.gradient)) {
      base::throw_invalid_argument(kAttempted, fmt::format("'{}' is not in the memory of the CPU", parameter.name),
                                   "only CPU tensors are supported");
    }
    if (parameter.value.dtype() == DType::boolean) {
      base::throw_invalid_argument(kAttempted, fmt::format("'{}' is boolean, which has no average", parameter.name),
                                   "leave it out");
    }
    if (parameter.value.dtype() == parameter.gradient.dtype() &&
        std::ranges::equal(parameter.value.shape(), parameter.gradient.shape())) {
      continue;
    }
    base::throw_invalid_argument(kAttempted,
                                 fmt::format("the gradient of '{}' is {}, but its value is {}", parameter.name,
                                             parameter.gradient.description(), parameter.value.description()),
                                 "a gradient must have the shape and element type of its parameter");
  }
}

}  // namespace

class Reducer::Impl {
 public:
  Impl(std::vector<Parameter> parameters, ProcessGroup group, const ReducerOptions& options)
      : parameters_(std::move(parameters)), group_(std::move(group)), options_(options), ready_(parameters_.size()) {
    reducer::verify_parameters(group_, parameters_);
    check_parameters(parameters_);  // after the ranks agree, so that all of them throw here or none
    if (options_.broadcast_parameters) reducer::broadcast_parameters(group_, parameters_);
    // parameters are usually listed in the order of the forward pass; their gradients come in reverse
    auto plan = reducer::assign_buckets(tensor_infos({}), limits());
    std::reverse(plan.begin(), plan.end());
    make_buckets(std::move(plan));
  }

  void prepare_for_backward() {
    if (in_step_)
      base::throw_invalid_argument("starting a backward pass", "the last one was not finalized",
                                   "call finalize() after each");
    if (broken_)
      base::throw_invalid_argument("starting a backward pass", "an earlier one has failed",
                                   "make a new Reducer, on all ranks");
    if (stats_.iteration == 1 && options_.rebuild_buckets) rebuild();
    for (auto& flag : ready_) flag.store(false, std::memory_order_relaxed);
    for (std::size_t i = 0; i < plan_.size(); ++i) pending_[i].store(plan_[i].size(), std::memory_order_relaxed);
    works_.clear();
    arrivals_.clear();
    backward_started_ = Clock::now();
    in_step_ = true;
  }

  void mark_ready(std::size_t index) {
    if (index >= parameters_.size()) {
      base::throw_invalid_argument("marking a gradient ready",
                                   fmt::format("there is no parameter {} of {}", index, parameters_.size()), "");
    }
    const Parameter& parameter = parameters_[index];
    if (!in_step_) {
      base::throw_invalid_argument(fmt::format("marking the gradient of '{}' ready", parameter.name),
                                   "no backward pass has been started", "call prepare_for_backward() first");
    }
    if (ready_[index].exchange(true)) {
      base::throw_invalid_argument(fmt::format("marking the gradient of '{}' ready", parameter.name),
                                   fmt::format("parameter {} was marked ready before in this step", index),
                                   "mark a parameter once, when its gradient is final");
    }
    const Place place = places_[index];
    if (group_.size() > 1) buckets_[place.bucket].copy_in(place.slot, parameter.gradient, group_.size());
    // the last one to arrive sees what all others have written into the bucket
    const bool full = pending_[place.bucket].fetch_sub(1, std::memory_order_acq_rel) == 1;
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(index);
    if (full) launch_full_buckets();
  }

  void finalize() {
    const auto finalize_called = Clock::now();
    if (!in_step_)
      base::throw_invalid_argument("finalizing a backward pass", "none has been started",
                                   "call prepare_for_backward() first");
    in_step_ = false;
    broken_ = true;  // until the step is complete: ranks in different steps would average different buckets
    check_all_ready();
    {
      const std::lock_guard lock(mutex_);
      launch_full_buckets();  // rethrows what a mark_ready threw and the program ignored
    }
    for (const Work& work : works_) work.wait();
    if (group_.size() > 1) {
      for (std::size_t index = 0; index < parameters_.size(); ++index) {
        buckets_[places_[index].bucket].copy_out(places_[index].slot, parameters_[index].gradient);
      }
    }
    record(finalize_called);
    broken_ = false;
  }

  const reducer::BucketPlan& plan() const noexcept { return plan_; }
  const ReducerStats& stats() const noexcept { return stats_; }

 private:
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };

  std::vector<std::size_t> limits() const {
    if (options_.bucket_cap_bytes) return {*options_.bucket_cap_bytes};
    return {options_.first_bucket_bytes, 25 * MiB};
  }

  /// In the given order; of all parameters in index order when it is empty.
  std::vector<reducer::TensorInfo> tensor_infos(std::span<const std::size_t> order) const {
    std::vector<reducer::TensorInfo> infos;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const TensorView& gradient = parameters_[order.empty() ? i : order[i]].gradient;
      infos.push_back({gradient.size_bytes(), gradient.dtype(), gradient.device()});
    }
    return infos;
  }

  void make_buckets(reducer::BucketPlan plan) {
    plan_ = std::move(plan);
    buckets_.clear();
    places_.assign(parameters_.size(), {});
    pending_ = std::deque<std::atomic<std::size_t>>(plan_.size());
    for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
      for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) places_[plan_[bucket][slot]] = {bucket, slot};
      buckets_.emplace_back(parameters_, plan_[bucket]);
    }
  }

  /// Gradients may come in different orders on each rank; rank 0's decides the buckets of all.
  void rebuild() {
    std::vector<std::int64_t> order(first_arrivals_.begin(), first_arrivals_.end());
    group_.broadcast(order, 0).wait();
    const std::vector<std::size_t> indices(order.begin(), order.end());
    auto plan = reducer::assign_buckets(tensor_infos(indices), limits(), indices);
    if (plan != plan_) make_buckets(std::move(plan));
  }

  /// Launches, in index order, every bucket that is full and whose predecessors are launched. Called with mutex_ held.
  void launch_full_buckets() {
    while (works_.size() < plan_.size() && pending_[works_.size()].load(std::memory_order_acquire) == 0) {
      if (works_.empty()) first_launch_ = Clock::now();
      works_.push_back(buckets_[works_.size()].launch(group_));
    }
  }

  void check_all_ready() const {
    std::vector<std::string> missing;
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      if (!ready_[index].load()) missing.push_back(fmt::format("{} '{}'", index, parameters_[index].name));
    }
    if (missing.empty()) return;
    base::throw_invalid_argument(
        "finalizing a backward pass",
        fmt::format("{} of {} parameters were not marked ready: {}", missing.size(), parameters_.size(),
                    fmt::join(missing, ", ")),
        "every parameter needs a gradient in every step; mark unused ones ready with a gradient of zeros");
  }

  void record(Clock::time_point finalize_called) {
    if (stats_.iteration == 0) first_arrivals_ = arrivals_;
    ++stats_.iteration;
    const auto last_finished = works_.back().finished_at().value_or(finalize_called);
    stats_.backward = finalize_called - backward_started_;
    stats_.communication = last_finished - first_launch_;
    stats_.overlap = std::max<Clock::duration>(std::min(last_finished, finalize_called) - first_launch_, {});
  }

  const std::vector<Parameter> parameters_;
  ProcessGroup group_;
  const ReducerOptions options_;
  reducer::BucketPlan plan_;
  std::vector<reducer::Bucket> buckets_;
  std::vector<Place> places_;                     ///< by parameter
  std::deque<std::atomic<std::size_t>> pending_;  ///< by bucket: gradients still missing in this step
  std::deque<std::atomic<bool>> ready_;           ///< by parameter
  std::atomic<bool> in_step_ = false;
  bool broken_ = false;  ///< a step has failed

  std::mutex mutex_;  ///< guards what follows while gradients arrive
  std::vector<Work> works_;
  std::vector<std::size_t> arrivals_;
  Clock::time_point first_launch_{};

  std::vector<std::size_t> first_arrivals_;
  Clock::time_point backward_started_{};
  ReducerStats stats_;
};

Reducer::Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), options)) {}
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::prepare_for_backward() { impl_->prepare_for_backward(); }
void Reducer::mark_ready(std::size_t index) { impl_->mark_ready(index); }
void Reducer::finalize() { impl_->finalize(); }
const std::vector<std::vector<std::size_t>>& Reducer::buckets() const noexcept { return impl_->plan(); }
const ReducerStats& Reducer::stats() const noexcept { return impl_->stats(); }

}  // namespace ddp
