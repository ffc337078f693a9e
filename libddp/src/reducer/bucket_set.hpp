// The buckets of a Reducer and their way through a step: filled in any order, exchanged in theirs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/reducer.hpp>
#include <ddp/tensor_executor.hpp>

#include "collectives/backend.hpp"
#include "kernels/executor.hpp"
#include "reducer/bucket.hpp"

namespace ddp::reducer {

// ---- When each bucket of some steps was filled, launched and done, for chrome://tracing and Perfetto.

/// For a bucket, each time is written by one thread; the others by that which starts and finalizes steps.
class BucketTrace {
 public:
  using Time = Deadline::Clock::time_point;

  struct Times {
    Time computed{};  ///< the first of its gradients
    Time ready{};     ///< the last one
    Time launched{};
    Time done{};  ///< on the CPU
  };

  /// Of a step; without a forward pass where nobody told when it began.
  struct Passes {
    Time forward{};
    Time backward{};
    Time backward_end{};
    Time end{};  ///< all is averaged
  };

  /// @param steps how many to note, at most.
  BucketTrace(std::size_t steps, int rank);
  bool full() const noexcept { return steps_.size() >= limit_; }
  std::size_t num_steps() const noexcept { return steps_.size(); }
  /// Begins a step; of one that has failed, again.
  void start_step(std::size_t buckets) { now_.assign(buckets, {}); }
  /// @param bytes of each bucket
  void finish_step(std::uint64_t iteration, const BucketPlan& plan, const Passes& passes,
                   std::vector<std::size_t> bytes);
  Times& of(std::size_t bucket) { return now_[bucket]; }

  /// Trace Event Format: one process for each rank, one thread for steps and one for each bucket; times since the
  /// epoch, so that the files of several ranks can be joined.
  std::string json() const;

 private:
  struct Step {
    std::uint64_t iteration;
    Passes passes;
    std::vector<Times> buckets;
    std::vector<std::size_t> bytes;         ///< of each bucket
    std::vector<std::size_t> parameters{};  ///< how many each bucket has
  };
  std::size_t limit_;
  int rank_;
  std::chrono::nanoseconds epoch_;  ///< what to add to a time of the steady clock
  std::vector<Times> now_;
  std::vector<Step> steps_;
};

// ---- Moves tensors in the memory of the CPU, on the calling thread.

/// Any thread, all members.
class HostExecutor final : public TensorExecutor, public collectives::KernelLauncher {
 public:
  std::optional<Stream> stream() const noexcept override { return std::nullopt; }
  void copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor) override;
  Bytes read(const void* from, std::size_t bytes, Deadline deadline) override;
  void write(std::shared_ptr<const Bytes> from, void* to, Deadline deadline) override;
  void wait_for(const Work& work) override { work.wait(); }
  void wait_for(const Moment& /*over*/) override {}
  Moment now_in(const Stream& /*none*/) override { return {}; }
  void hold_back(const Stream& /*none*/) override {}
  void keep(std::shared_ptr<const void> /*not used any more*/) noexcept override {}
  kernels::Executor& launcher() override { return kernels_; }

 private:
  kernels::HostExecutor kernels_;
};

class BucketSet {
 public:
  using Time = Deadline::Clock::time_point;

  /// @p parameters and @p options stay where they are.
  BucketSet(const std::vector<Parameter>& parameters, const ReducerOptions& options)
      : parameters_(parameters), options_(options) {}

  /// Makes the buckets of a plan, between steps. Gradients that live in buckets move along.
  /// @param device of gradients on a CUDA device; null if there are none, or nothing is to be moved.
  void make(BucketPlan plan, ProcessGroup& group, std::shared_ptr<TensorExecutor> device);
  const BucketPlan& plan() const noexcept { return plan_; }
  /// Else there is nothing to do in a step: each rank's gradients are the average.
  bool exchanges() const noexcept { return exchanges_; }
  bool has_memory() const noexcept { return !buckets_.empty(); }
  TensorView view(std::size_t parameter) const;

  /// @param idle by parameter: given as unused. @param divisor of gradients, if there is no hook.
  void start_step(const std::vector<bool>& idle, int divisor);
  /// Puts a gradient (null: zeros) into its bucket, and launches what is full then. Thread-safe. Throws the error of
  /// the first launch that failed in this step.
  void contribute(std::size_t parameter, const void* gradient, ProcessGroup& group);
  /// What @p producer holds now computes a parameter's gradient: its bucket waits for it. Before contribute.
  /// Thread-safe.
  void wait_for_producer(std::size_t parameter, const Stream& producer);
  /// Launches what is full. Throws as contribute. Before the buckets are waited for, when all are.
  void finish_launching(ProcessGroup& group);
  /// Waits for a bucket; throws its error.
  void wait(std::size_t bucket, ProcessGroup& group);
  /// Writes the gradients of a bucket to @p targets, by parameter, of those that somebody @p used.
  void copy_out(std::size_t bucket, const std::vector<void*>& targets, const std::vector<std::uint8_t>& used,
                ProcessGroup& group);

  /// The step is over: what comes later in the streams that have computed gradients on a device waits for the averages,
  /// and for the gradients of one another.
  /// Throws Error.
  void hold_back_producers();

  /// A step has failed: the same, so that the program may free its gradients in these streams. Logs.
  void abandon() noexcept;

  /// After a step that exchanges nothing: gives the gradients at @p sources to the hook, if it wants them, and sets
  /// them to 0.
  void hand_over(const std::vector<void*>& sources, ProcessGroup& group);

  /// Between steps; null: none.
  void set_trace(BucketTrace* trace) noexcept { trace_ = trace; }

  /// Whether the exchange of this step has begun, or has failed to. Between marks.
  bool has_launched() const noexcept { return !launched_.empty() || launching_ || error_ != nullptr; }

  /// In this step.
  std::size_t exchanged() const noexcept {
    return exchanges_ ? static_cast<std::size_t>(std::ranges::count(skipped_, false)) : 0;
  }
  Time first_launch() const noexcept { return first_launch_; }
  Time last_finish() const noexcept { return last_finish_; }  ///< of the buckets on the CPU

 private:
  struct Place {
    std::size_t bucket;
    std::size_t slot;
  };
  /// A bucket under way: an operation, or what a hook has started; neither if it is skipped.
  struct Launched {
    std::optional<Work> work{};
    BucketExchange exchange{};
  };

  void move_gradients(const std::vector<Bucket>& old, const std::vector<Place>& old_places);
  /// In the order of the buckets, by one thread at a time: what others have filled meanwhile, it launches, too.
  void launch_full(ProcessGroup& group);
  Launched launch(std::size_t bucket, ProcessGroup& group);
  /// On a device: lets the bucket wait for its gradients, and copies them in.
  void fill(std::size_t bucket);
  /// For a bucket that has been filled: gradients live in it now.
  void take_over(std::size_t bucket);
  /// The program's stream, of a device.
  Stream home(Device device) const { return home_stream(device, options_); }
  /// As reducer::guarded, with the hook that there is.
  template <class Call>
  auto guarded(ProcessGroup& group, const Call& call);

  const std::vector<Parameter>& parameters_;
  const ReducerOptions& options_;
  bool exchanges_ = false;
  int divisor_ = 1;
  const std::shared_ptr<TensorExecutor> host_ = std::make_shared<HostExecutor>();
  std::shared_ptr<TensorExecutor> device_;  ///< null: nothing is moved on one
  BucketPlan plan_;
  std::vector<Bucket> buckets_;                   ///< none if nothing is exchanged and gradients are elsewhere
  std::vector<Place> places_;                     ///< by parameter
  std::deque<std::atomic<std::size_t>> pending_;  ///< by bucket: gradients still missing in this step
  std::vector<bool> skipped_;                     ///< by bucket
  BucketTrace* trace_ = nullptr;

  /// By bucket and stream, of others than the program's: when the last gradient of it was there.
  using Producers = std::vector<std::map<void*, TensorExecutor::Moment>>;
  std::mutex producers_mutex_;  ///< guards the next
  Producers producers_;

  std::mutex mutex_;  ///< guards what follows while gradients arrive; held for moments
  std::condition_variable launch_over_;
  bool launching_ = false;  ///< a thread launches the bucket behind launched_
  std::vector<Launched> launched_;
  std::exception_ptr error_;
  Time first_launch_{};
  Time last_finish_{};
};

}  // namespace ddp::reducer
