// What a Reducer consists of. reducer.cpp has what programs call, reducer.cpp its steps, reducer.cpp its
// buckets, join.cpp the steps of others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ddp/join.hpp>
#include <ddp/reducer.hpp>

#include "reducer/bucket.hpp"
#include "reducer/bucket_set.hpp"
#include "reducer/parameter_list.hpp"
#include "reducer/sparse_gradients.hpp"
#include "reducer/step_log.hpp"
#include "reducer/step_report.hpp"

namespace ddp::reducer {

// ---- How often each parameter has been marked ready in a step, and how often it must be.

/// mark() is thread-safe.
class ReadyMarks {
 public:
  enum class Mark : std::uint8_t { early, ready, excess };

  /// @param needed by parameter.
  explicit ReadyMarks(std::vector<std::uint32_t> needed) : needed_(std::move(needed)), marks_(needed_.size()) {}

  /// Until accept_counts(), no mark makes a parameter ready.
  void count_only() noexcept { counting_ = true; }
  bool counting() const noexcept { return counting_; }
  /// From now on as often as @p counts says, by parameter.
  void accept_counts(std::span<const std::int64_t> counts) {
    counting_ = false;
    for (std::size_t i = 0; i < needed_.size(); ++i) needed_[i] = static_cast<std::uint32_t>(counts[i]);
  }

  void start_step() noexcept {
    for (auto& marks : marks_) marks.store(0, std::memory_order_relaxed);
  }
  /// Whoever gets `ready` sees what the other markers of the parameter did before.
  Mark mark(std::size_t index) noexcept {
    const std::uint32_t count = marks_[index].fetch_add(1, std::memory_order_acq_rel) + 1;
    if (counting_ || count < needed_[index]) return Mark::early;
    return count == needed_[index] ? Mark::ready : Mark::excess;
  }
  /// For a parameter that gets no mark in this step: later marks are excess. Before the step's first mark().
  void close(std::size_t index) noexcept { marks_[index].store(needed_[index], std::memory_order_relaxed); }
  std::uint32_t needed(std::size_t index) const { return needed_[index]; }
  std::uint32_t count(std::size_t index) const noexcept { return marks_[index].load(std::memory_order_acquire); }
  bool complete(std::size_t index) const noexcept { return count(index) >= needed_[index]; }

 private:
  std::vector<std::uint32_t> needed_;
  std::deque<std::atomic<std::uint32_t>> marks_;
  bool counting_ = false;
};

}  // namespace ddp::reducer

namespace ddp {

class Reducer::Impl final : public Joinable {
  using Clock = Deadline::Clock;
  using ParameterList = reducer::ParameterList;
  using ReadyMarks = reducer::ReadyMarks;

 public:
  Impl(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options);
  Impl& operator=(Impl&&) = delete;
  ~Impl() override { abandon_step(); }

  void prepare_for_backward(std::span<const std::size_t> unused);
  /// @param producer null: ReducerOptions::stream, of gradients on a device.
  void mark_ready(std::size_t index, const TensorView* gradient, const Stream* producer);
  void mark_ready(std::size_t index, const SparseGradient& gradient, const Stream* producer);
  void place_gradient(std::size_t index, const TensorView& gradient);
  void place_gradient(std::size_t index, const SparseGradient& gradient);
  SparseGradient sparse_average(std::size_t index) const;
  void finalize();
  bool give_up();
  NoSync no_sync() { return NoSync{no_sync_depth_}; }

  TensorView bucket_view(std::size_t index) const;
  bool used(std::size_t index) const {
    return used_anywhere_[check_.owner_of(index, "asking whether a parameter was used")] != 0;
  }

  void broadcast_buffers(std::span<const TensorView> buffers, int root);
  void change_group(ProcessGroup group);
  const reducer::BucketPlan& plan() const noexcept { return buckets_.plan(); }
  const std::vector<std::size_t>& order() const noexcept { return order_; }
  RecordedOrder recorded_order() const;
  const ReducerStats& stats() const noexcept { return stats_; }

  /// Calls @p body; the log gets the error that it throws.
  template <class Body>
  void note_error(Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      log_.note_error(error.what());
      throw;
    }
  }
  reducer::StepLog& log() noexcept { return log_; }
  void start_forward() {
    forward_started_ = Clock::now();
    log_.start_forward();
  }
  DdpLog read_log() const { return log_.read(group_); }
  void trace(std::size_t steps);
  std::string trace_json() const { return trace_ ? trace_->json() : reducer::BucketTrace(0, 0).json(); }

  // Joinable
  void set_join_buffers(std::vector<TensorView> buffers) { join_buffers_ = std::move(buffers); }
  ProcessGroup& join_group() override { return group_; }
  void enter_join(Join& join) override;
  void leave_join() noexcept override { join_ = nullptr; }
  void shadow(JoinEvent event) override;
  void finish_join(int last) override;

 private:
  /// Compares everything with the other ranks, and takes what moves gradients on a device.
  ProcessGroup compare(ProcessGroup group);
  void abandon_step() noexcept {
    if (in_step_.exchange(false)) reducer::StepEnd failed(options_.comm_hook.get(), buckets_);
  }

  // buckets

  /// For all parameters in the given order.
  reducer::BucketPlan plan_of(const std::vector<std::size_t>& order) const;
  /// For those that are delayed, or of those that are not.
  reducer::BucketPlan plan_of(const std::vector<std::size_t>& order, bool delayed) const;
  reducer::BucketPlan initial_plan() const;
  /// For the delayed ones, in the given order, into a plan of the others.
  reducer::BucketPlan with_delayed(reducer::BucketPlan plan, const std::vector<std::size_t>& order) const;
  /// Gradients may come in different orders on each rank; rank 0's decides the buckets of all.
  void rebuild();
  void make_buckets(reducer::BucketPlan plan);
  /// Where a gradient is, unless mark_ready says otherwise.
  void* own_memory(std::size_t owner) const;
  void reset_sources();

  // steps

  /// By owner: whether all names of the parameter are in @p unused. Else those that are count as its marks, except in a
  /// static graph, where real marks are counted.
  std::vector<bool> mark_unused_names(std::span<const std::size_t> unused);
  void accept_mark(std::size_t index, std::size_t owner, void* memory, const Stream* producer);
  /// Throws Error(invalid_argument) if the gradient is not sparse, or not dense.
  void check_kind(std::size_t owner, bool sparse, const char* attempted) const;
  /// Puts a gradient into its bucket, if it has one.
  void contribute(std::size_t owner, const void* gradient);
  /// A mark of a parameter that gets several: the accepted one that came last says where its gradient is.
  ReadyMarks::Mark mark_shared(std::size_t owner, void* memory);
  void start_step(std::span<const std::size_t> unused);
  /// For no_sync.
  void finish_local_step();
  /// For one that exchanges. @param given_up its averages are of no use.
  void finish_step(bool given_up);
  /// Learns what the other ranks have, and writes the averages.
  void conclude(const std::vector<std::size_t>& missing, bool find_unused, bool given_up);
  void record(Clock::time_point finalize_called);
  /// Steps of others, to which this rank gives zeros.
  void shadow_step();
  void shadow_local_step();
  /// From now on gradients are marked as often as in this step. Collective within a Join.
  void end_counting();

  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  std::shared_ptr<TensorExecutor> device_;  ///< null: no gradients are moved on one
  ProcessGroup group_;
  ParameterList list_;
  reducer::CallCheck check_;
  ReadyMarks marks_;
  reducer::SparseGradients sparse_;
  int divisor_ = 1;                 ///< of gradients in this step
  std::vector<std::size_t> order_;  ///< of gradients, agreed
  bool rebuilt_ = false;
  bool rebuild_due_ = false;                 ///< in the next step that exchanges
  std::vector<void*> sources_;               ///< by parameter: its gradient in this step; null: zeros
  std::deque<std::atomic<bool>> used_;       ///< by parameter: marked here since the last average
  std::vector<std::uint8_t> used_anywhere_;  ///< by parameter, in the last average
  reducer::BucketSet buckets_;
  reducer::StepReport report_;
  reducer::StepLog log_;
  std::optional<reducer::BucketTrace> trace_;
  std::string trace_file_;  ///< of DDP_TRACE_DIR; empty: not written

  std::atomic<bool> in_step_ = false;
  bool synchronize_ = true;  ///< this step, or the last one, is none of no_sync
  bool recording_ = false;   ///< this step, to rebuild buckets by
  bool noting_ = false;      ///< arrivals, in this step
  bool broken_ = false;      ///< a step has failed
  /// Marks were not counted here, so no rank knows what others use: until the first step ends.
  bool asks_used_ = false;
  /// There was a step of no_sync since the last average; of a group's first step nobody knows for all ranks.
  bool accumulated_ = true;
  bool shadow_ = false;  ///< this step, or the last one, is one of others
  int no_sync_depth_ = 0;
  Join* join_ = nullptr;                  ///< while ranks may run out of inputs
  std::vector<TensorView> join_buffers_;  ///< what broadcast_buffers brings meanwhile
  std::mutex mutex_;                      ///< guards what follows, and the sources of parameters with several marks
  std::vector<std::size_t> arrivals_;     ///< of gradients, in the step that is recorded
  Clock::time_point forward_started_{};   ///< of the next step, if it is known
  Clock::time_point backward_started_{};
  ReducerStats stats_;
};

}  // namespace ddp
