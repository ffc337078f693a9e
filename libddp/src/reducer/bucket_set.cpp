#include "reducer/bucket_set.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/group_engine.hpp"

namespace ddp::reducer {

void BucketSet::make(BucketPlan plan, const ProcessGroup& group) {
  const bool in_buckets = options_.gradient_as_bucket_view;
  std::vector<Bucket> old = std::move(buckets_);
  if (!in_buckets) old.clear();  // before the new ones need memory
  const std::vector<Place> old_places = std::move(places_);
  exchanges_ = group.size() > 1 || options_.comm_hook;
  plan_ = std::move(plan);
  buckets_.clear();
  places_.assign(parameters_.size(), {});
  pending_ = std::deque<std::atomic<std::size_t>>(plan_.size());
  for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    if (exchanges_ || in_buckets) buckets_.emplace_back(parameters_, plan_[bucket], options_);
    for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) {
      const std::size_t parameter = plan_[bucket][slot];
      places_[parameter] = {bucket, slot};
      if (old.empty()) continue;
      const Place from = old_places[parameter];
      buckets_[bucket].move_in(slot, old[from.bucket].view(from.slot).data());
    }
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
  error_ = nullptr;
  if (trace_ != nullptr) trace_->start_step(plan_.size());
}

void BucketSet::contribute(std::size_t parameter, const void* gradient, ProcessGroup& group) {
  const Place place = places_[parameter];
  if (!skipped_[place.bucket]) buckets_[place.bucket].copy_in(place.slot, gradient, divisor_);
  // the last one to arrive sees what all others have written into the bucket
  const std::size_t missing = pending_[place.bucket].fetch_sub(1, std::memory_order_acq_rel);
  if (trace_ != nullptr) {
    BucketTrace::Times& times = trace_->of(place.bucket);
    if (missing == plan_[place.bucket].size()) times.computed = Deadline::Clock::now();
    if (missing == 1) times.ready = Deadline::Clock::now();
  }
  if (missing == 1) launch_full(group);
}

void BucketSet::launch_full(ProcessGroup& group) {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  try {
    launch_full_locked(group);
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

void BucketSet::launch_full_locked(ProcessGroup& group) {
  while (launched_.size() < plan_.size() && pending_[launched_.size()].load(std::memory_order_acquire) == 0) {
    if (launched_.empty()) first_launch_ = Deadline::Clock::now();
    if (trace_ != nullptr) trace_->of(launched_.size()).launched = Deadline::Clock::now();
    launched_.push_back(launch(launched_.size(), group));
  }
}

template <class Call>
auto BucketSet::guard_hook(ProcessGroup& group, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    if (group.size() > 1) {
      const int own = group.global_ranks()[static_cast<std::size_t>(group.rank())];
      collectives::GroupEngine::of(group).end_group(
          Error{{.code = ErrorCode::aborted,
                 .attempted = fmt::format("averaging gradients by the hook '{}'", options_.comm_hook->name()),
                 .cause = fmt::format("it failed on rank {}: {}", own, error.what()),
                 .native = {},
                 .ranks = {own},
                 .hint = "look at that rank; then change the group, or make a new one"}});
    }
    throw;
  }
}

BucketSet::Launched BucketSet::launch(std::size_t bucket, ProcessGroup& group) {
  if (skipped_[bucket]) return {};
  if (!options_.comm_hook) return {.work = buckets_[bucket].launch(group, options_.stream), .exchange = {}};
  const GradientBucket lent = buckets_[bucket].lend(bucket, bucket + 1 == plan_.size());
  return {.work = {}, .exchange = guard_hook(group, [&] { return options_.comm_hook->start(lent, group); })};
}

void BucketSet::wait(std::size_t bucket, ProcessGroup& group) {
  const Launched& launched = launched_[bucket];
  if (launched.work && !buckets_[bucket].on_cpu()) {
    const Device device = parameters_[plan_[bucket].front()].value.device();
    launched.work->order(options_.stream.value_or(Stream{.device = device, .handle = nullptr}));
    return;  // the device ends it, nobody here knows when
  } else if (launched.work) {
    launched.work->wait();
    last_finish_ = launched.work->finished_at().value_or(Deadline::Clock::now());
  } else if (launched.exchange) {
    guard_hook(group, launched.exchange);
    last_finish_ = Deadline::Clock::now();
  }
  if (trace_ != nullptr && !skipped_[bucket]) trace_->of(bucket).done = last_finish_;
}

void BucketSet::copy_out(std::size_t bucket, const std::vector<void*>& targets,
                         const std::vector<std::uint8_t>& used) const {
  if (skipped_[bucket]) return;
  for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) {
    const std::size_t parameter = plan_[bucket][slot];
    if (used[parameter] != 0) buckets_[bucket].copy_out(slot, targets[parameter]);
  }
}

void BucketSet::hand_over(const std::vector<void*>& sources) {
  if (!options_.comm_hook || !options_.comm_hook->takes_leaves()) return;
  for (std::size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) {
      buckets_[bucket].copy_in(slot, sources[plan_[bucket][slot]], 1);
    }
    options_.comm_hook->add_leaf(buckets_[bucket].lend(bucket, bucket + 1 == plan_.size()));
    for (std::size_t slot = 0; slot < plan_[bucket].size(); ++slot) {
      buckets_[bucket].copy_in(slot, nullptr, 1);
      buckets_[bucket].copy_out(slot, sources[plan_[bucket][slot]]);
    }
  }
}

}  // namespace ddp::reducer
