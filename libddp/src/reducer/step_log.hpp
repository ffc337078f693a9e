// Fills a DdpLog: facts of the Reducer when asked, and times of the steps that are sampled.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/ddp_log.hpp>
#include <ddp/reducer.hpp>

#include "reducer/bucket.hpp"
#include "reducer/parameter_list.hpp"

namespace ddp::reducer {

class StepLog {
 public:
  using Time = Deadline::Clock::time_point;

  /// The times of a step on this rank.
  struct Times {
    Time backward_start;
    Time backward_end;
    Time first_launch;
    Time last_finish;  ///< of the buckets; no meaning if the exchange is not timed
    Time end;
  };
  /// What a sampled step was like.
  struct Sample {
    std::uint64_t iteration;
    Times times;
    bool timed;           ///< there was an exchange, and its times are known
    std::size_t buckets;  ///< that were exchanged
    bool rebuilt;
    bool joined;
    bool shadow;  ///< one of others, in a Join: its times are not this rank's
  };

  /// The arguments stay where they are.
  StepLog(const std::vector<Parameter>& parameters, const ReducerOptions& options, const ParameterList& list)
      : parameters_(parameters), options_(options), list_(list) {}

  /// Ranks may have finished different numbers of steps before.
  void join_group(const BucketPlan& plan);
  void start_forward() { forward_start_ = Deadline::Clock::now(); }
  /// Whether the step that has begun is one.
  bool samples() const noexcept { return steps_ < 10 || (steps_ + 1) % options_.log.sample_rate == 0; }
  /// Who was used here in this step: each time, since changes are noted.
  void note_used(const std::vector<std::uint8_t>& used);
  void note_error(std::string text);
  /// Collective if the step is sampled and stragglers are asked for.
  void finish_step(const Sample& sample, const BucketPlan& plan, std::span<const std::size_t> arrivals,
                   ProcessGroup& group);

  DdpLog read(const ProcessGroup& group) const;

 private:
  void note(const Sample& sample, const BucketPlan& plan, std::span<const std::size_t> arrivals, ProcessGroup& group);
  /// To the flight recorder's memory, for those outside.
  void publish(const Sample& sample);
  /// @param waited ns; nothing: this rank has taken no step.
  void find_straggler(std::optional<std::int64_t> waited, ProcessGroup& group);
  std::string sizes_of(const BucketPlan& plan) const;

  const std::vector<Parameter>& parameters_;
  const ReducerOptions& options_;
  const ParameterList& list_;
  std::uint64_t steps_ = 0;  ///< finished in this group
  std::int64_t sampled_ = 0;
  std::optional<Time> forward_start_;
  std::vector<std::uint8_t> used_;
  bool used_changed_ = false;
  std::optional<Time> last_end_;  ///< of this rank's last step
  bool looked_ = false;           ///< for stragglers, in the last step
  DdpLog last_;                   ///< its runtime fields
  mutable std::mutex mutex_;      ///< guards what follows: marks may fail in any thread
  std::string error_;
};

}  // namespace ddp::reducer
