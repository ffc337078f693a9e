// When each bucket of some steps was filled, launched and done, for chrome://tracing and Perfetto.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "reducer/bucket_plan.hpp"

namespace ddp::reducer {

/// Of a bucket, each time is written by one thread; the others by that which starts and finalizes steps.
class BucketTrace {
 public:
  using Time = Deadline::Clock::time_point;

  struct Times {
    Time computed{};  ///< the first of its gradients
    Time ready{};     ///< the last one
    Time launched{};
    Time done{};  ///< on the CPU
  };

  /// @param steps how many to note, at most.
  BucketTrace(std::size_t steps, int rank);
  bool full() const noexcept { return steps_.size() >= limit_; }
  /// Begins a step; of one that has failed, again.
  void start_step(std::size_t buckets) { now_.assign(buckets, {}); }
  void finish_step(std::uint64_t iteration, const BucketPlan& plan);
  Times& of(std::size_t bucket) { return now_[bucket]; }

  /// Trace Event Format: one process for each rank, one thread for each bucket; times since the epoch, so that the
  /// files of several ranks can be joined.
  std::string json() const;

 private:
  struct Step {
    std::uint64_t iteration;
    std::vector<Times> buckets;
    std::vector<std::size_t> parameters{};  ///< how many each bucket has
  };
  std::size_t limit_;
  int rank_;
  std::chrono::nanoseconds epoch_;  ///< what to add to a time of the steady clock
  std::vector<Times> now_;
  std::vector<Step> steps_;
};

}  // namespace ddp::reducer
