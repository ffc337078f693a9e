#include "reducer/bucket_trace.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ddp::reducer {

BucketTrace::BucketTrace(std::size_t steps, int rank)
    : limit_(steps),
      rank_(rank),
      epoch_(std::chrono::system_clock::now().time_since_epoch() - Deadline::Clock::now().time_since_epoch()) {}

void BucketTrace::finish_step(std::uint64_t iteration, const BucketPlan& plan) {
  Step step{.iteration = iteration, .buckets = std::exchange(now_, {})};
  for (const auto& bucket : plan) step.parameters.push_back(bucket.size());
  steps_.push_back(std::move(step));
}

std::string BucketTrace::json() const {
  std::string text = fmt::format(
      "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
      "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {0}, \"args\": {{\"name\": \"rank {0}\"}}}}",
      rank_);
  const auto add = [&](const char* what, const Step& step, std::size_t bucket, Time from, Time to) {
    if (from == Time{} || to < from) return;  // skipped, or its end on a device is not known
    const auto microseconds = [](std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; };
    text += fmt::format(
        ",\n{{\"name\": \"{}\", \"cat\": \"bucket\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": "
        "{:.3f}, "
        "\"args\": {{\"step\": {}, \"bucket\": {}, \"parameters\": {}}}}}",
        what, rank_, bucket, microseconds(from.time_since_epoch() + epoch_), microseconds(to - from), step.iteration,
        bucket, step.parameters[bucket]);
  };
  for (const Step& step : steps_) {
    for (std::size_t bucket = 0; bucket < step.buckets.size(); ++bucket) {
      const Times& times = step.buckets[bucket];
      add("computed", step, bucket, times.computed, times.ready);
      add("ready", step, bucket, times.ready, times.launched);
      add("launched", step, bucket, times.launched, times.done);
    }
  }
  return text + "\n]}\n";
}

}  // namespace ddp::reducer
