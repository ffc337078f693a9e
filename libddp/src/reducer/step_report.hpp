// What ranks exchange at the end of a step: who misses gradients, and which parameters any rank has used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/comm_hook.hpp>
#include <ddp/process_group.hpp>
#include <ddp/reducer.hpp>

#include "reducer/bucket_set.hpp"

namespace ddp::reducer {

/// One all_reduce of CPU memory, behind the buckets: 4 bytes, and 4 more for each parameter if its use is asked for.
class StepReport {
 public:
  /// Collective. @param used by parameter, or empty on all ranks.
  void send(ProcessGroup& group, bool misses_gradients, std::span<const std::uint8_t> used);
  /// Throws the error of the exchange.
  void wait();
  /// After wait(), of all ranks.
  bool misses_gradients() const { return sums_->front() != 0; }
  bool used(std::size_t index) const { return (*sums_)[1 + index] != 0; }

 private:
  std::shared_ptr<std::vector<std::int32_t>> sums_;
  std::optional<Work> work_;
};

/// "2 of 4 parameters were not marked ready: 0 'layer0', 2 'layer2'"; empty if @p missing is.
std::string describe_missing(const std::vector<Parameter>& parameters, std::span<const std::size_t> missing);
/// The description of a rank whose backward pass has failed.
inline constexpr auto kGivenUp = "the backward pass has failed, and was given up";

/// Collective. Throws the same Error on all ranks, with the @p descriptions of those that miss gradients, and @p hint
/// unless a rank has given up.
[[noreturn]] void throw_missing(ProcessGroup& group, const std::string& description, std::string hint);

// ---- Answers of ranks to one question, for messages: equal ones together.

/// Each answer once, with the world ranks that gave it; the smallest rank's first. @p answers: by rank in the group.
std::vector<std::pair<std::string, std::vector<int>>> group_answers(const ProcessGroup& group,
                                                                    const std::vector<std::string>& answers);

// ---- Whether all ranks leave the same parameters unused.

/// Collective: one all_gather of 8 bytes. Throws Error(mismatch), the same on all ranks, naming the first parameter
/// that only some ranks gave as unused.
void agree_on_unused(ProcessGroup& group, const std::vector<Parameter>& parameters,
                     std::span<const std::size_t> unused);

// ---- What fails in the middle of a step on one rank must not leave the others waiting for its part.

/// Ends the group, on all its ranks. @param hook that has failed; null: work on a device.
void end_step_everywhere(ProcessGroup& group, const CommHook* hook, const std::exception& error);

/// Calls a hook, or a device. What it throws ends the group, since the other ranks wait for this one's part of the
/// exchange.
template <class Call>
auto guarded(ProcessGroup& group, const CommHook* hook, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    end_step_everywhere(group, hook, error);
    throw;
  }
}

// ---- The end of a step, for a hook that keeps something from step to step, and for a device that works on gradients.

/// Tells them that a step has ended: failed, unless it is set complete before.
class StepEnd {
 public:
  StepEnd(CommHook* hook, BucketSet& buckets) noexcept : hook_(hook), buckets_(buckets) {}
  StepEnd& operator=(StepEnd&&) = delete;
  ~StepEnd() {
    if (!complete) buckets_.abandon();
    if (hook_ != nullptr) hook_->end_step(complete);
  }
  bool complete = false;

 private:
  CommHook* hook_;
  BucketSet& buckets_;
};

}  // namespace ddp::reducer
