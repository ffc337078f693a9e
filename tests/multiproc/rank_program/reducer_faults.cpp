// A rank that is lost, or misses a gradient, in a given phase of a Reducer's work.
#include <csignal>

#include <array>
#include <deque>
#include <optional>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

/// Averages, but the victim fails in its second bucket of the second step.
class FaultyHook final : public CommHook {
 public:
  explicit FaultyHook(std::function<void()> fail) : fail_(std::move(fail)) {}
  std::string name() const override { return "faulty"; }
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    if (++calls_ == 7) fail_();
    return inner_->start(bucket, group);
  }

 private:
  std::function<void()> fail_;
  std::shared_ptr<CommHook> inner_ = all_reduce_hook();
  int calls_ = 0;
};

/// Four parameters, each larger than its bucket's limit.
class FaultyJob {
 public:
  explicit FaultyJob(World& world) : group_(make_process_group(world)) {
    for (int i = 0; i < 4; ++i) {
      values_.emplace_back(3000, 1.0F);
      gradients_.emplace_back(3000, static_cast<float>(world.rank()));
    }
  }
  Reducer make(std::shared_ptr<CommHook> hook = nullptr) {
    std::vector<Parameter> list;
    for (std::size_t i = 0; i < 4; ++i) {
      list.push_back({.name = fmt::format("layer{}", i), .value = values_[i], .gradient = gradients_[i]});
    }
    ReducerOptions options;
    options.bucket_cap_bytes = 1000;
    options.comm_hook = std::move(hook);
    return Reducer(std::move(list), group_, options);
  }
  ProcessGroup& group() { return group_; }
  std::vector<TensorView> buffers() { return {values_[0], values_[1]}; }

 private:
  ProcessGroup group_;
  std::deque<std::vector<float>> values_;
  std::deque<std::vector<float>> gradients_;
};

}  // namespace

void fail_in_reducer(World& world, Arguments arguments) {
  check(arguments.size() == 3, "reducer-fault PHASE RANK SIGNAL");
  const std::string phase = arguments[0];
  const bool victim = world.rank() == std::stoi(arguments[1]);
  const auto reach = [&](const char* here) {
    if (victim && phase == here) raise(std::stoi(arguments[2]));
  };
  FaultyJob job(world);
  Deadline::Clock::time_point started = Deadline::Clock::now();
  try {
    reach("construction");
    Reducer reducer = job.make(phase == "hook" ? std::make_shared<FaultyHook>([&] { reach("hook"); }) : nullptr);
    std::optional<Join> join;
    if (phase == "join") {
      join.emplace(std::vector<Joinable*>{&reducer.joinable(job.buffers())});
      if (world.rank() == 0) join->finish();
    }
    for (int step = 0; step < 20; ++step) {
      started = Deadline::Clock::now();
      if (step == 1) reach("rebuild");
      reducer.prepare_for_backward();
      for (const std::size_t index : {3, 1, 2, 0}) {
        if (step == 1 && index == 2) reach("buckets");
        if (step == 3 && index == 2) reach("join");
        reducer.mark_ready(index);
      }
      if (step == 1) reach("finalize");
      reducer.finalize();
      if (step == 1) reach("buffers");
      reducer.broadcast_buffers(job.buffers());
    }
  } catch (const Error&) {
    fmt::print("WAITED {:.3f}\n", std::chrono::duration<double>(Deadline::Clock::now() - started).count());
    throw;
  }
}

void miss_a_gradient(World& world) {
  FaultyJob job(world);
  Reducer reducer = job.make();
  const int ranks = world.world_size();
  const auto step = [&](bool complete) {
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 2, 1, 0}) {
      if (complete || index != 2 || world.rank() != ranks - 1) reducer.mark_ready(index);
    }
    reducer.finalize();
  };
  for (int attempt = 0; attempt < 3; ++attempt) {
    // in the step that is recorded for rebuilding, in the one after it, and in a later one
    try {
      step(false);
      check(false, "a gradient that is missing was accepted");
    } catch (const Error& error) {
      const std::string text = error.what();
      check(error.code() == ErrorCode::invalid_argument && error.ranks() == std::vector<int>{ranks - 1} &&
                text.find("1 of 4 parameters were not marked ready: 2 'layer2'") != std::string::npos,
            text);
    }
    step(true);
  }
  check(reducer.stats().iteration == 3, "failed steps are counted");
  // the group that is left of one rank goes on alone, and comes back
  const std::array<int, 1> own{0};
  if (const auto alone = job.group().new_group(own)) {
    reducer.change_group(*alone);
    step(true);
    check(reducer.stats().iteration == 4, "no step in the other group");
  }
  reducer.change_group(job.group());
  step(true);
}

}  // namespace ddp::test
