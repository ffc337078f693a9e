// Ranks that die, stop, stay away or call something else while the others are in a collective.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include <ddp/batch.hpp>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

Deadline seconds_from_now(const std::string& seconds) {
  return Deadline::after(std::chrono::duration<double>(std::stod(seconds)));
}

/// No thread but the calling one runs any more, as where they get no processor. Threads of libddp take the signals of
/// faults alone.
void starve_other_threads() {
  struct sigaction action {};
  action.sa_handler = [](int) {
    for (;;) ::pause();
  };
  ::sigaction(SIGTRAP, &action, nullptr);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const int thread = std::stoi(entry.path().filename());
    if (thread != ::gettid()) ::syscall(SYS_tgkill, ::getpid(), thread, SIGTRAP);
  }
}

/// Another program, which inherits the descriptors that are not close-on-exec and outlives this process.
void start_child() {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::string name = "sleep";
  std::string time = "60";
  std::array<char*, 3> arguments{name.data(), time.data(), nullptr};
  pid_t child = -1;
  check(posix_spawnp(&child, "sleep", &actions, nullptr, arguments.data(), environ) == 0, "cannot start sleep");
  posix_spawn_file_actions_destroy(&actions);
  say(fmt::format("CHILD {}", child));
}

/// As a data loader's worker: inherits all descriptors, and outlives this process.
void start_worker() {
  const pid_t worker = ::fork();
  check(worker >= 0, "cannot fork");
  if (worker == 0) {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
    ::sleep(60);
    ::_exit(0);
  }
  say(fmt::format("CHILD {}", worker));
}

/// Fails with the group's error, and says how long the failing operation took. @p start throws if the group has failed
/// since the operation before.
void timed(const std::function<Work()>& start) {
  const auto started = Deadline::Clock::now();
  try {
    start().wait();
  } catch (const Error&) {
    say(fmt::format("WAITED {:.3f}", std::chrono::duration<double>(Deadline::Clock::now() - started).count()));
    throw;
  }
}

void timed(const Work& work) {
  timed([&] { return work; });
}

}  // namespace

void loop_all_reduce(World& world, Arguments arguments) {
  const std::string child = arguments.size() == 3 ? arguments[2] : "";
  check(arguments.size() == 2 || child == "exec" || child == "fork", "loop SECONDS SIZE [exec|fork]");
  ProcessGroup group = make_process_group(world);
  std::vector<float> values(std::stoul(arguments[1]), 1.0F);
  group.barrier().wait();
  if (child == "exec") start_child();
  if (child == "fork") start_worker();
  say("READY");
  for (;;) timed([&] { return group.all_reduce(values, ReduceOp::avg, seconds_from_now(arguments[0])); });
}

void hang_on_purpose(World& world, Arguments arguments) {
  check(arguments.size() == 2, "hang WHAT RANK");
  const int culprit = std::stoi(arguments[1]);
  const int partner = (culprit + 1) % world.world_size();
  ProcessGroup group = make_process_group(world);
  auto pair = group.new_group(std::vector{std::min(culprit, partner), std::max(culprit, partner)});
  std::vector<float> values(100, 1.0F);
  group.all_reduce(values).wait();
  say("READY");
  if (world.rank() == culprit) {
    if (arguments[0] == "sleep") ::sleep(120);
    if (arguments[0] == "stop") ::raise(SIGSTOP);
    if (arguments[0] == "spin") {
      while (::getppid() != 0) continue;
    }
    if (arguments[0] == "open") {  // a FIFO that nobody writes
      const std::string path = fmt::format("fifo.{}", ::getpid());
      check(::mkfifo(path.c_str(), 0600) == 0 && ::open(path.c_str(), O_RDONLY) >= 0, "no FIFO");
    }
    if (arguments[0] == "elsewhere") pair->barrier(seconds_from_now("120")).wait();
  }
  group.all_reduce(values, ReduceOp::sum, seconds_from_now("120")).wait();
}

void call_differently(World& world, Arguments arguments) {
  check(arguments.size() == 3, "differ WHAT RANK SECONDS");
  ProcessGroup group = make_process_group(world);
  const std::string& what = arguments[0];
  const bool odd_one = world.rank() == std::stoi(arguments[1]);
  const Deadline deadline = seconds_from_now(arguments[2]);
  group.barrier().wait();
  std::vector<float> values(1000, 1.0F);
  std::vector<double> doubles(1000, 1.0);
  std::vector<float> longer(2000, 1.0F);
  std::vector<float> none;
  if (what == "size") return timed(group.all_reduce(odd_one ? longer : values, ReduceOp::sum, deadline));
  if (what == "empty") return timed(group.all_reduce(odd_one ? none : values, ReduceOp::sum, deadline));
  if (what == "dtype") {
    return timed(group.all_reduce(odd_one ? TensorView(doubles) : TensorView(values), ReduceOp::sum, deadline));
  }
  if (what == "op") return timed(group.all_reduce(values, odd_one ? ReduceOp::max : ReduceOp::sum, deadline));
  if (what == "root") return timed(group.broadcast(values, odd_one ? 1 : 0, deadline));
  if (what == "kind")
    return timed(odd_one ? group.barrier(deadline) : group.all_reduce(values, ReduceOp::sum, deadline));
  if (what == "starved") {
    if (!odd_one) return timed(group.barrier(deadline));
    starve_other_threads();
    std::this_thread::sleep_until(deadline.when() + std::chrono::seconds(2));
    ::_exit(0);
  }
  if (what == "absent") {
    if (!odd_one) return timed(group.all_reduce(values, ReduceOp::sum, deadline));
    std::this_thread::sleep_until(deadline.when() + std::chrono::seconds(2));
    return timed(group.all_reduce(values, ReduceOp::sum, Deadline::after(std::chrono::seconds(5))));
  }
  if (what == "transfer") {  // the odd one sends more than its neighbour expects
    if (odd_one) return timed(group.send(longer, (world.rank() + 1) % world.world_size(), 0, deadline));
    if ((std::stoi(arguments[1]) + 1) % world.world_size() == world.rank()) {
      return timed(group.recv(values, std::stoi(arguments[1]), 0, deadline));
    }
    return timed(group.barrier(deadline));
  }
  check(false, "unknown difference " + what);
}

void exchange_differently(World& world, Arguments arguments) {
  check(arguments.size() == 3, "exchange WHAT RANK SECONDS");
  ProcessGroup group = make_process_group(world);
  const std::string& what = arguments[0];
  const int odd_one = std::stoi(arguments[1]);
  const int next = (odd_one + 1) % world.world_size();
  const Deadline deadline = seconds_from_now(arguments[2]);
  std::vector<float> memory(static_cast<std::size_t>(world.world_size()) * 16);
  const auto part = [&](int of, std::size_t count) {
    return TensorView(&memory[static_cast<std::size_t>(of) * 16], DType::float32, {static_cast<std::int64_t>(count)});
  };
  group.barrier().wait();
  std::optional<Work> work;
  if (what == "message") {
    if (world.rank() == odd_one) work = group.send(part(0, 8), next, 3, deadline);
    if (world.rank() == next) work = group.recv(part(0, 4), odd_one, 3, deadline);
  } else {  // as all_to_all with sizes does it, of rows of two
    Batch batch(group, "all_to_all", 2);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      if (rank == world.rank()) continue;
      const bool odd = world.rank() == odd_one && rank == next;
      if (!odd || what == "rows") batch.send(part(rank, odd ? 6 : 4), rank, 7);
      batch.recv(part(rank, 4), rank, 7);
    }
    // the deadline of the one that waits comes last
    if (world.rank() == next) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    work = batch.start(seconds_from_now(arguments[2]));
  }
  if (work) timed(*work);
  timed(group.barrier(seconds_from_now(arguments[2])));
}

// A rank that is lost, or misses a gradient, in a given phase of a Reducer's work.

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
