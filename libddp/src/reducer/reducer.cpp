#include <ddp/reducer.hpp>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>

#include "base/invalid_argument.hpp"
#include "reducer/bucket_plan.hpp"
#include "reducer/bucket_set.hpp"
#include "reducer/call_check.hpp"
#include "reducer/options_check.hpp"
#include "reducer/parameter_check.hpp"
#include "reducer/parameter_list.hpp"
#include "reducer/ready_marks.hpp"
#include "reducer/step_report.hpp"
#include "reducer/unused_agreement.hpp"

namespace ddp {

namespace {

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

}  // namespace

class Reducer::Impl {
  using Clock = Deadline::Clock;
  using ParameterList = reducer::ParameterList;
  using ReadyMarks = reducer::ReadyMarks;

 public:
  Impl(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
      : parameters_(std::move(parameters)),
        options_(std::move(options)),
        group_(join(std::move(group))),
        list_(parameters_, options_),
        check_(parameters_, options_, list_),
        marks_(list_.names()),
        used_(parameters_.size()),
        used_anywhere_(parameters_.size(), 1),
        buckets_(parameters_, options_) {
    if (options_.broadcast_parameters) {
      std::vector<TensorView> values;
      for (const Parameter& parameter : parameters_) values.push_back(parameter.value);
      broadcast_coalesced(group_, values, 0, options_.stream);
    }
    if (options_.static_graph) marks_.count_only();
    order_ = options_.ready_order.empty() ? std::vector<std::size_t>{} : list_.complete_order(options_.ready_order);
    make_buckets(initial_plan());
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { abandon_step(); }

  void prepare_for_backward(std::span<const std::size_t> unused) {
    constexpr auto kAttempted = "starting a backward pass";
    if (in_step_)
      base::throw_invalid_argument(kAttempted, "the last one was not finalized", "call finalize() after each");
    if (broken_) {
      base::throw_invalid_argument(kAttempted, "an earlier one has failed",
                                   "make a new Reducer, or change the group, on all ranks");
    }
    check_.unused(unused);
    const bool synchronize = no_sync_depth_ == 0;
    if (synchronize && rebuild_due_) rebuild();
    if (synchronize && options_.skip_all_reduce_unused) reducer::agree_on_unused(group_, parameters_, unused);
    synchronize_ = synchronize;
    start_step(unused);
  }

  void mark_ready(std::size_t index, const TensorView* gradient) {
    if (!in_step_.load(std::memory_order_acquire)) check_.throw_outside(index);
    const std::size_t owner = check_.owner_of(index, "marking a gradient ready");
    check_.gradient(index, own_memory(owner), gradient);
    void* const memory = gradient != nullptr ? gradient->data() : own_memory(owner);
    const bool several_marks = marks_.counting() || list_.names()[owner] > 1;
    const auto mark = several_marks ? mark_shared(owner, memory) : marks_.mark(owner);
    if (mark == ReadyMarks::Mark::excess) check_.throw_excess(index, marks_.needed(owner));
    used_[owner].store(true, std::memory_order_relaxed);
    if (recording_ && (marks_.counting() || mark == ReadyMarks::Mark::ready)) {
      const std::lock_guard lock(mutex_);
      arrivals_.push_back(owner);
    }
    if (mark == ReadyMarks::Mark::early) return;
    if (!several_marks) sources_[owner] = memory;
    if (synchronize_ && buckets_.exchanges()) buckets_.contribute(owner, memory, group_);
  }

  void finalize() {
    const auto finalize_called = Clock::now();
    if (!in_step_) {
      base::throw_invalid_argument("finalizing a backward pass", "none has been started",
                                   "call prepare_for_backward() first");
    }
    in_step_ = false;
    if (!synchronize_) {
      accumulated_ = true;
      return buckets_.hand_over(sources_);
    }
    broken_ = true;  // until the step is complete: ranks in different steps would average different buckets
    StepEnd end(options_.comm_hook.get());
    const bool counting = marks_.counting();
    std::vector<std::size_t> missing;
    for (const std::size_t owner : list_.owners()) {
      if (!counting && marks_.complete(owner)) continue;
      missing.push_back(owner);
      if (buckets_.exchanges()) buckets_.contribute(owner, sources_[owner], group_);
    }
    const bool find_unused = counting || options_.find_unused_parameters;
    if (find_unused) missing.clear();
    if (buckets_.exchanges()) buckets_.launch_full(group_);  // throws what a mark_ready threw and the program ignored
    conclude(missing, find_unused);
    end.complete = true;
    if (counting) marks_.accept_counts();
    record(finalize_called);
    broken_ = false;
  }

  NoSync no_sync() { return NoSync{no_sync_depth_}; }

  TensorView bucket_view(std::size_t index) const {
    const std::size_t owner = check_.owner_of(index, "asking for a gradient's place in its bucket");
    return buckets_.has_memory() ? buckets_.view(owner) : parameters_[owner].gradient;
  }

  bool used(std::size_t index) const {
    return used_anywhere_[check_.owner_of(index, "asking whether a parameter was used")] != 0;
  }

  void broadcast_buffers(std::span<const TensorView> buffers, int root) {
    if (synchronize_) broadcast_coalesced(group_, buffers, root, options_.stream);
  }

  void change_group(ProcessGroup group) {
    abandon_step();
    group_ = join(std::move(group));
    broken_ = false;
    synchronize_ = true;
    // Survivors of a failure may have come to different ends of the first step, and other ranks use other parameters.
    if (options_.static_graph) marks_.count_only();
    used_anywhere_.assign(parameters_.size(), 1);
    rebuilt_ = false;
    rebuild_due_ = false;
    make_buckets(initial_plan());
  }

  const reducer::BucketPlan& plan() const noexcept { return buckets_.plan(); }
  const std::vector<std::size_t>& order() const noexcept { return order_; }
  const ReducerStats& stats() const noexcept { return stats_; }

 private:
  /// Compares everything with the other ranks.
  ProcessGroup join(ProcessGroup group) const {
    reducer::verify_parameters(group, parameters_, reducer::describe(options_));
    reducer::check_options(options_, parameters_.size());
    if (options_.comm_hook) options_.comm_hook->join_group(group);
    return group;
  }

  void abandon_step() noexcept {
    if (in_step_.exchange(false)) StepEnd failed(options_.comm_hook.get());
  }

  // buckets

  /// Of all parameters in the given order.
  reducer::BucketPlan plan_of(const std::vector<std::size_t>& order) const {
    std::vector<reducer::TensorInfo> infos;
    for (const std::size_t index : order) {
      const TensorView& value = parameters_[index].value;
      infos.push_back({value.size_bytes(), value.dtype(), value.device()});
    }
    return reducer::assign_buckets(infos, reducer::bucket_limits(options_), order);
  }

  reducer::BucketPlan initial_plan() const {
    if (!order_.empty() && !options_.ready_order.empty()) return plan_of(order_);
    // parameters are usually listed in the order of the forward pass; their gradients come in reverse
    reducer::BucketPlan plan = plan_of(list_.owners());
    std::ranges::sort(plan, std::greater<>{}, [](const auto& bucket) { return bucket.front(); });
    return plan;
  }

  /// Gradients may come in different orders on each rank; rank 0's decides the buckets of all.
  void rebuild() {
    const std::vector<std::size_t> own = list_.complete_order(arrivals_);
    std::vector<std::int64_t> order(own.begin(), own.end());
    group_.broadcast(order, 0).wait();
    order_.assign(order.begin(), order.end());
    rebuilt_ = true;
    rebuild_due_ = false;
    auto plan = plan_of(order_);
    if (list_.on_cpu() && plan != buckets_.plan()) make_buckets(std::move(plan));
  }

  void make_buckets(reducer::BucketPlan plan) {
    buckets_.make(std::move(plan), group_);
    reset_sources();
  }

  /// Where a gradient is, unless mark_ready says otherwise.
  void* own_memory(std::size_t owner) const {
    return options_.gradient_as_bucket_view ? buckets_.view(owner).data() : parameters_[owner].gradient.data();
  }

  void reset_sources() {
    sources_.assign(parameters_.size(), nullptr);
    for (const std::size_t owner : list_.owners()) sources_[owner] = own_memory(owner);
  }

  // steps

  /// By owner: whether all names of the parameter are in @p unused. Else those that are count as its marks, except in a
  /// static graph, where real marks are counted.
  std::vector<bool> mark_unused_names(std::span<const std::size_t> unused) {
    const std::vector<std::uint32_t> names = list_.names_in(unused);
    std::vector<bool> all(parameters_.size());
    for (const std::size_t owner : list_.owners()) {
      all[owner] = names[owner] == list_.names()[owner];
      if (all[owner] || options_.static_graph) continue;
      for (std::uint32_t i = 0; i < names[owner]; ++i) marks_.mark(owner);
    }
    return all;
  }

  /// A mark of a parameter that gets several: the accepted one that came last says where its gradient is.
  ReadyMarks::Mark mark_shared(std::size_t owner, void* memory) {
    const std::lock_guard lock(mutex_);
    const auto mark = marks_.mark(owner);
    if (mark != ReadyMarks::Mark::excess) sources_[owner] = memory;
    return mark;
  }

  void start_step(std::span<const std::size_t> unused) {
    marks_.start_step();
    recording_ = synchronize_ && !rebuilt_ && reducer::rebuilds(options_);
    arrivals_.clear();
    backward_started_ = Clock::now();
    std::vector<bool> idle = mark_unused_names(unused);
    // Ranks have agreed on these only; gradients from steps of no_sync must be averaged whatever follows.
    buckets_.start_step(accumulated_ ? std::vector<bool>(parameters_.size()) : idle);
    const bool counting = marks_.counting();
    for (const std::size_t owner : list_.owners()) {
      if (!counting && marks_.needed(owner) == 0) idle[owner] = true;
    }
    in_step_ = true;
    if (!synchronize_ || counting) return;
    for (const std::size_t owner : list_.owners()) {
      if (!idle[owner]) continue;
      marks_.close(owner);
      if (buckets_.exchanges()) buckets_.contribute(owner, sources_[owner], group_);
    }
  }

  /// Learns what the other ranks have, and writes the averages.
  void conclude(const std::vector<std::size_t>& missing, bool find_unused) {
    std::vector<std::uint8_t> used(find_unused ? parameters_.size() : 0);
    bool all_used = true;
    if (find_unused) {
      for (const std::size_t owner : list_.owners()) {
        used[owner] = used_[owner] ? 1 : 0;
        all_used = all_used && used_[owner];
      }
      used_anywhere_ = used;
    }
    bool misses = !missing.empty();
    const bool several = group_.size() > 1;
    if (several) report_.send(group_, misses, used);
    const auto read_report = [&] {
      if (!several) return;
      report_.wait();
      misses = report_.misses_gradients();
      for (std::size_t i = 0; i < used.size(); ++i) used_anywhere_[i] = report_.used(i) ? 1 : 0;
    };
    // a gradient that this rank did not use stays as it is if no rank did: that must be known first
    if (!all_used) read_report();
    if (buckets_.exchanges()) {
      for (std::size_t bucket = 0; bucket < buckets_.plan().size(); ++bucket) {
        buckets_.wait(bucket);
        if (!misses) buckets_.copy_out(bucket, sources_, used_anywhere_);
      }
    }
    if (all_used) read_report();
    for (const std::size_t owner : list_.owners()) used_[owner].store(false, std::memory_order_relaxed);
    reset_sources();
    accumulated_ = false;
    if (misses) {
      broken_ = false;  // every rank stops here
      reducer::throw_missing(group_, reducer::describe_missing(parameters_, missing), reducer::missing_hint(options_));
    }
  }

  void record(Clock::time_point finalize_called) {
    ++stats_.iteration;
    rebuild_due_ = recording_;
    recording_ = false;
    stats_.backward = finalize_called - backward_started_;
    if (!buckets_.exchanges()) return;
    const auto launched = buckets_.first_launch();
    stats_.communication = buckets_.last_finish() - launched;
    stats_.overlap = std::max<Clock::duration>(std::min(buckets_.last_finish(), finalize_called) - launched, {});
  }

  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  ProcessGroup group_;
  ParameterList list_;
  reducer::CallCheck check_;
  ReadyMarks marks_;
  std::vector<std::size_t> order_;  ///< of gradients, agreed
  bool rebuilt_ = false;
  bool rebuild_due_ = false;                 ///< in the next step that exchanges
  std::vector<void*> sources_;               ///< by parameter: its gradient in this step; null: zeros
  std::deque<std::atomic<bool>> used_;       ///< by parameter: marked here since the last average
  std::vector<std::uint8_t> used_anywhere_;  ///< by parameter, in the last average
  reducer::BucketSet buckets_;
  reducer::StepReport report_;

  std::atomic<bool> in_step_ = false;
  bool synchronize_ = true;   ///< this step, or the last one, is none of no_sync
  bool recording_ = false;    ///< arrivals, in this step
  bool broken_ = false;       ///< a step has failed
  bool accumulated_ = false;  ///< there was a step of no_sync since the last average, on all ranks
  int no_sync_depth_ = 0;
  std::mutex mutex_;                   ///< guards what follows, and the sources of parameters with several marks
  std::vector<std::size_t> arrivals_;  ///< of gradients, in the step that is recorded
  Clock::time_point backward_started_{};
  ReducerStats stats_;
};

Reducer::Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), std::move(options))) {}
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::prepare_for_backward(std::span<const std::size_t> unused) { impl_->prepare_for_backward(unused); }
void Reducer::mark_ready(std::size_t index) { impl_->mark_ready(index, nullptr); }
void Reducer::mark_ready(std::size_t index, const TensorView& gradient) { impl_->mark_ready(index, &gradient); }
void Reducer::finalize() { impl_->finalize(); }
Reducer::NoSync Reducer::no_sync() { return impl_->no_sync(); }
TensorView Reducer::bucket_view(std::size_t index) const { return impl_->bucket_view(index); }
bool Reducer::used(std::size_t index) const { return impl_->used(index); }
void Reducer::broadcast_buffers(std::span<const TensorView> buffers, int root) {
  impl_->broadcast_buffers(buffers, root);
}
void Reducer::change_group(ProcessGroup group) { impl_->change_group(std::move(group)); }
const std::vector<std::vector<std::size_t>>& Reducer::buckets() const noexcept { return impl_->plan(); }
const std::vector<std::size_t>& Reducer::ready_order() const noexcept { return impl_->order(); }
const ReducerStats& Reducer::stats() const noexcept { return impl_->stats(); }

}  // namespace ddp
