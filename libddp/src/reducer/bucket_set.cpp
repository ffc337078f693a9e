#include "reducer/bucket_set.hpp"

#include <array>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "collectives/reduce_kernels.hpp"
#include "kernels/copies.hpp"
#include "reducer/step_report.hpp"

namespace ddp::reducer {

void BucketSet::make(BucketPlan plan, ProcessGroup& group, std::shared_ptr<TensorExecutor> device) {
  const bool in_buckets = options_.gradient_as_bucket_view;
  exchanges_ = group.size() > 1 || options_.comm_hook;
  const std::shared_ptr<TensorExecutor> former = std::exchange(device_, std::move(device));
  // a single rank's group has nothing to move them
  if (!exchanges_ && !device_ && plan == plan_ && !buckets_.empty()) return;
  std::vector<Bucket> old = std::move(buckets_);
  if (!in_buckets) old.clear();  // frees them before the new ones need memory
  const std::vector<Place> old_places = std::move(places_);
  plan_ = std::move(plan);
  buckets_.clear();
  places_.assign(parameters_.size(), {});
  pending_ = std::deque<std::atomic<std::size_t>>(plan_.size());
  producers_ = Producers(plan_.size());
  for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    const bool on_cpu = parameters_[plan_[bucket].front()].value.device().type == DeviceType::cpu;
    if (exchanges_ || in_buckets) {
      buckets_.emplace_back(parameters_, plan_[bucket], options_, group, on_cpu ? host_ : device_);
    }
    for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) places_[plan_[bucket][slot]] = {bucket, slot};
  }
  if (old.empty()) return;
  move_gradients(old, old_places);
  // Their memory is freed once the old device is done with it.
  if (former && device_ && former != device_) device_->hold_back(*former->stream());
}

void BucketSet::move_gradients(const std::vector<Bucket>& old, const std::vector<Place>& old_places) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    if (!bucket.on_cpu()) bucket.executor().wait_for(bucket.executor().now_in(home(bucket.device())));
    std::vector<const void*> gradients;
    for (const std::size_t parameter : plan_[i]) {
      const Place from = old_places[parameter];
      gradients.push_back(old[from.bucket].view(from.slot).data());
    }
    bucket.move_in(gradients);
    if (!bucket.on_cpu()) bucket.executor().hold_back(home(bucket.device()));
  }
}

TensorView BucketSet::view(std::size_t parameter) const {
  return buckets_[places_[parameter].bucket].view(places_[parameter].slot);
}

void BucketSet::start_step(const std::vector<bool>& idle, int divisor) {
  divisor_ = options_.comm_hook ? 1 : divisor;
  skipped_.assign(plan_.size(), false);
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    pending_[i].store(plan_[i].size(), std::memory_order_relaxed);
    if (!options_.skip_all_reduce_unused) continue;
    skipped_[i] = std::ranges::all_of(plan_[i], [&](std::size_t parameter) { return idle[parameter]; });
  }
  launched_.clear();
  for (auto& moments : producers_) moments.clear();
  error_ = nullptr;
  if (trace_ != nullptr) trace_->start_step(plan_.size());
}

void BucketSet::contribute(std::size_t parameter, const void* gradient, ProcessGroup& group) {
  const Place place = places_[parameter];
  if (!skipped_[place.bucket]) buckets_[place.bucket].copy_in(place.slot, gradient, divisor_);
  // the last to arrive sees what all others have written into the bucket
  const std::size_t missing = pending_[place.bucket].fetch_sub(1, std::memory_order_acq_rel);
  if (trace_ != nullptr) {
    BucketTrace::Times& times = trace_->of(place.bucket);
    if (missing == plan_[place.bucket].size()) times.computed = Deadline::Clock::now();
    if (missing == 1) times.ready = Deadline::Clock::now();
  }
  if (missing == 1) launch_full(group);
}

/// Releases the lock while it launches a bucket: that may drive operations whose ends call the program's functions.
void BucketSet::launch_full(ProcessGroup& group) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (error_) std::rethrow_exception(error_);
    const std::size_t bucket = launched_.size();
    // the launching thread looks again before it leaves
    if (launching_ || bucket == plan_.size() || pending_[bucket].load(std::memory_order_acquire) != 0) return;
    if (bucket == 0) first_launch_ = Deadline::Clock::now();
    if (trace_ != nullptr) trace_->of(bucket).launched = Deadline::Clock::now();
    launching_ = true;
    lock.unlock();
    std::optional<Launched> started;
    std::exception_ptr error;
    try {
      started = launch(bucket, group);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    launching_ = false;
    if (error) {
      error_ = error;
    } else {
      launched_.push_back(*std::move(started));
    }
    launch_over_.notify_all();
  }
}

void BucketSet::finish_launching(ProcessGroup& group) {
  launch_full(group);
  std::unique_lock lock(mutex_);
  launch_over_.wait(lock, [this] { return !launching_; });
  if (error_) std::rethrow_exception(error_);
}

template <class Call>
auto BucketSet::guarded(ProcessGroup& group, const Call& call) {
  return reducer::guarded(group, options_.comm_hook.get(), call);
}

void BucketSet::wait_for_producer(std::size_t parameter, const Stream& producer) {
  if (!exchanges_ || producer.handle == home(producer.device).handle) return;
  const std::lock_guard lock(producers_mutex_);
  producers_[places_[parameter].bucket][producer.handle] = device_->now_in(producer);
}

void BucketSet::fill(std::size_t bucket) {
  if (buckets_[bucket].on_cpu()) return;
  TensorExecutor& executor = buckets_[bucket].executor();
  executor.wait_for(executor.now_in(home(buckets_[bucket].device())));
  {
    const std::lock_guard lock(producers_mutex_);
    for (const auto& [stream, moment] : producers_[bucket]) executor.wait_for(moment);
  }
  buckets_[bucket].fill(divisor_);
}

void BucketSet::take_over(std::size_t bucket) {
  if (!options_.gradient_as_bucket_view || !options_.moved_in) return;
  if (!buckets_[bucket].on_cpu()) {  // later work there may overwrite the gradients' old memory
    TensorExecutor& executor = buckets_[bucket].executor();
    const Device device = buckets_[bucket].device();
    executor.hold_back(home(device));
    const std::lock_guard lock(producers_mutex_);
    for (const auto& [stream, moment] : producers_[bucket]) executor.hold_back({.device = device, .handle = stream});
  }
  options_.moved_in(plan_[bucket]);
}

BucketSet::Launched BucketSet::launch(std::size_t bucket, ProcessGroup& group) {
  if (skipped_[bucket]) return {};
  guarded(group, [&] {
    fill(bucket);
    take_over(bucket);
  });
  if (!options_.comm_hook) return {.work = buckets_[bucket].launch(group, divisor_)};
  const GradientBucket lent = buckets_[bucket].lend(bucket, bucket + 1 == plan_.size(), group);
  return {.exchange = guarded(group, [&] { return options_.comm_hook->start(lent, group); })};
}

void BucketSet::wait(std::size_t bucket, ProcessGroup& group) {
  const Launched& launched = launched_[bucket];
  if (launched.work && buckets_[bucket].on_cpu()) {
    launched.work->wait_watched();
  } else if (launched.work) {
    buckets_[bucket].executor().wait_for(*launched.work);
  } else if (launched.exchange) {
    guarded(group, launched.exchange);
  }
  if (skipped_[bucket] || !buckets_[bucket].on_cpu()) return;  // on a device the host does not see when it ends
  const auto finished = launched.work ? launched.work->finished_at() : std::nullopt;
  last_finish_ = finished.value_or(Deadline::Clock::now());
  if (trace_ != nullptr) trace_->of(bucket).done = last_finish_;
}

void BucketSet::copy_out(std::size_t bucket, const std::vector<void*>& targets, const std::vector<std::uint8_t>& used,
                         ProcessGroup& group) {
  if (skipped_[bucket]) return;
  const bool moved = options_.gradient_as_bucket_view && options_.moved_in;
  guarded(group, [&] { moved ? buckets_[bucket].copy_home(used) : buckets_[bucket].copy_out(targets, used); });
}

void BucketSet::hold_back_producers() {
  if (!device_ || !exchanges_) return;
  const Device device = device_->stream()->device;
  std::set<void*> streams{home(device).handle};
  for (const auto& moments : producers_) {
    for (const auto& [stream, moment] : moments) {
      device_->wait_for(moment);  // of a step that exchanges nothing, or of a skipped bucket
      streams.insert(stream);
    }
  }
  for (void* const stream : streams) device_->hold_back({.device = device, .handle = stream});
}

void BucketSet::abandon() noexcept {
  try {
    hold_back_producers();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "after a step that has failed: {}", error.what());
  }
}

void BucketSet::hand_over(const std::vector<void*>& sources, ProcessGroup& group) {
  if (!options_.comm_hook || !options_.comm_hook->takes_leaves()) return;
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    guarded(group, [&] {
      for (std::size_t slot = 0; slot < plan_[i].size(); ++slot) {
        bucket.copy_in(slot, sources[plan_[i][slot]], 1);
      }
      fill(i);
      options_.comm_hook->add_leaf(bucket.lend(i, i + 1 == plan_.size(), group));
      for (std::size_t slot = 0; slot < plan_[i].size(); ++slot) bucket.copy_in(slot, nullptr, 1);
      bucket.fill(1);
      bucket.copy_out(sources, std::vector<std::uint8_t>(parameters_.size(), 1));
    });
  }
}

BucketTrace::BucketTrace(std::size_t steps, int rank)
    : limit_(steps),
      rank_(rank),
      epoch_(std::chrono::system_clock::now().time_since_epoch() - Deadline::Clock::now().time_since_epoch()) {}

void BucketTrace::finish_step(std::uint64_t iteration, const BucketPlan& plan, const Passes& passes,
                              std::vector<std::size_t> bytes) {
  Step step{.iteration = iteration, .passes = passes, .buckets = std::exchange(now_, {}), .bytes = std::move(bytes)};
  for (const auto& bucket : plan) step.parameters.push_back(bucket.size());
  steps_.push_back(std::move(step));
}

std::string BucketTrace::json() const {
  std::string text = fmt::format(
      "{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
      "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {0}, \"args\": {{\"name\": \"rank {0}\"}}}}",
      rank_);
  const auto add = [&](const char* what, std::size_t thread, Time from, Time to, const std::string& arguments) {
    if (from == Time{} || to < from) return;  // skipped, or on a device
    const auto microseconds = [](std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; };
    text += fmt::format(
        ",\n{{\"name\": \"{}\", \"cat\": \"{}\", \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": "
        "{:.3f}, \"args\": {{{}}}}}",
        what, thread == 0 ? "step" : "bucket", rank_, thread, microseconds(from.time_since_epoch() + epoch_),
        microseconds(to - from), arguments);
  };
  for (const Step& step : steps_) {
    const Passes& passes = step.passes;
    const std::string number = fmt::format("\"step\": {}", step.iteration);
    add("step", 0, passes.forward == Time{} ? passes.backward : passes.forward, passes.end, number);
    add("forward", 0, passes.forward, passes.backward, number);
    add("backward", 0, passes.backward, passes.backward_end, number);
    for (std::size_t bucket = 0; bucket < step.buckets.size(); ++bucket) {
      const Times& times = step.buckets[bucket];
      const std::string arguments = fmt::format(R"({}, "bucket": {}, "parameters": {}, "bytes": {})", number, bucket,
                                                step.parameters[bucket], step.bytes[bucket]);
      add("gradients", bucket + 1, times.computed, times.ready, arguments);
      add("waiting", bucket + 1, times.ready, times.launched, arguments);
      add("exchange", bucket + 1, times.launched, times.done, arguments);
    }
  }
  return text + "\n]}\n";
}

namespace {

kernels::Format cast_format(DType type) {
  if (type == DType::float16) return kernels::Format::float16;
  if (type == DType::bfloat16) return kernels::Format::bfloat16;
  return kernels::Format::float32;
}

}  // namespace

void HostExecutor::copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor) {
  for (const TensorCopy& each : copies) {
    if (each.count == 0) continue;
    if (each.from == nullptr) {
      std::memset(each.to, 0, each.count * size_of(to));
    } else if (from != to) {
      const std::array pieces{kernels::Piece{.from = each.from, .to = each.to, .count = each.count}};
      kernels::copy(kernels_, pieces, cast_format(from), cast_format(to), 1.0 / divisor);
    } else if (divisor > 1) {
      collectives::divide_into(each.to, each.from, to, each.count, divisor);
    } else if (each.from != each.to) {
      std::memcpy(each.to, each.from, each.count * size_of(to));
    }
  }
}

Bytes HostExecutor::read(const void* from, std::size_t bytes, Deadline /*at once*/) {
  const auto* const begin = static_cast<const std::byte*>(from);
  return {begin, begin + bytes};
}

void HostExecutor::write(std::shared_ptr<const Bytes> from, void* to, Deadline /*at once*/) {
  std::ranges::copy(*from, static_cast<std::byte*>(to));
}

}  // namespace ddp::reducer
