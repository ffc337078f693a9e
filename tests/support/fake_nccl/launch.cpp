#include "launch.hpp"

#include <algorithm>
#include <map>

#include "cuda_side.hpp"

namespace fake_nccl {
namespace {

/// How many operations a device runs now: kernels that wait for others occupy it (collectives.md 4.4: two communicators
/// in different order on two ranks can so wait for each other).
class DeviceSlots {
 public:
  bool take(int device, const Stop& stop) {
    return wait_until(
        [&] {
          const int limit = settings().device_slots;
          const std::lock_guard lock(mutex_);
          if (limit > 0 && running_[device] >= limit) return false;
          ++running_[device];
          return true;
        },
        stop);
  }
  void give_back(int device) {
    const std::lock_guard lock(mutex_);
    --running_[device];
  }
  static DeviceSlots& process() {
    static auto* slots = new DeviceSlots;  // NOLINT(*-owning-memory): streams' threads may outlive main
    return *slots;
  }

 private:
  std::mutex mutex_;
  std::map<int, int> running_;
};

/// One kernel. Buffers are read and written when it runs, not before.
class Kernel {
 public:
  Kernel(ncclComm_t comm, std::vector<Task> tasks, bool captured)
      : comm_(comm), room_(comm->room), tasks_(std::move(tasks)), captured_(captured) {
    if (!captured_) ticket_ = comm_->order.take();
  }

  void run() {
    const std::uint64_t ticket = captured_ ? comm_->order.take() : ticket_;
    PeerWatch watch(comm_);
    const Stop stop = [&] { return watch.stopped(); };
    DeviceSlots& slots = DeviceSlots::process();
    if (wait_until([&] { return comm_->order.is_turn(ticket); }, stop) && slots.take(comm_->place.device, stop)) {
      jitter();
      for (const Task& task : tasks_) suffer_kernel(task.faults, stop);
      run_tasks(watch);
      slots.give_back(comm_->place.device);
    }
    done_ = true;
    comm_->order.finish(ticket);
  }
  void end() {
    done_ = true;
    if (!captured_) comm_->order.finish(ticket_);
  }

  // For the other streams of the group.
  std::atomic<int> arrived_{0};
  std::atomic<bool> done_{false};

 private:
  bool touches_memory() const {
    for (const Task& task : tasks_) {
      if (!touch_buffers(comm_, task)) return false;
    }
    return true;
  }

  void run_tasks(PeerWatch& watch) {
    if (!touches_memory()) return;
    std::vector<const Task*> transfers;
    for (const Task& task : tasks_) {
      if (task.function == Function::send || task.function == Function::receive) {
        transfers.push_back(&task);
      } else if (!run_collective(comm_, *room_, task, watch)) {
        return;
      }
    }
    if (!transfers.empty()) run_transfers(comm_, *room_, transfers, watch);
  }

  ncclComm_t comm_;
  std::shared_ptr<Room> room_;  // a captured kernel may outlive the communicator
  std::vector<Task> tasks_;
  bool captured_;
  std::uint64_t ticket_ = 0;
};

/// enqueue.cc:1157
bool sends_to_itself_match(ncclComm_t comm, const std::vector<Task>& tasks) {
  int open = 0;
  for (const Task& task : tasks) {
    if (task.function == Function::send && task.root == comm->rank) ++open;
    if (task.function == Function::receive && task.root == comm->rank) --open;
  }
  return open == 0;
}

}  // namespace

bool mismatch(ncclComm_t comm, PeerWatch& watch, const std::string& text) {
  complain("rank " + std::to_string(comm->rank) + ": " + text);
  if (settings().strict) {
    comm->background_error = ncclInvalidArgument;
  } else {
    wait_until([] { return false; }, [&] { return watch.stopped(); });
  }
  return false;
}

ncclResult_t launch(ncclComm_t comm, std::vector<Task> tasks) {
  if (!sends_to_itself_match(comm, tasks)) {
    note_error("Trying to send to self without a matching recv");
    return ncclInvalidUsage;
  }
  std::vector<cudaStream_t> streams;
  for (const Task& task : tasks) {
    if (std::find(streams.begin(), streams.end(), task.stream) == streams.end()) streams.push_back(task.stream);
  }
  const PlaceScope scope(comm->place.context);
  const bool captured = is_capturing(streams.front());
  if (captured && streams.size() > 1) {
    complain("the double captures no group on several streams");
    return ncclInvalidUsage;
  }
  const auto kernel = std::make_shared<Kernel>(comm, std::move(tasks), captured);
  // enqueue.cc, ncclLaunchPrepare: the launch stream waits for all streams of the group, and they for the kernel
  const Stop never = [] { return false; };
  for (std::size_t i = 1; i < streams.size(); ++i) {
    const auto marker = [kernel, never] {
      ++kernel->arrived_;
      wait_until([&] { return kernel->done_.load(); }, never);
    };
    if (!enqueue(streams[i], {.run = marker, .end = [kernel] { ++kernel->arrived_; }})) return ncclUnhandledCudaError;
  }
  const auto others = static_cast<int>(streams.size()) - 1;
  const auto run = [kernel, others, never] {
    wait_until([&] { return kernel->arrived_ >= others; }, never);
    kernel->run();
  };
  if (enqueue(streams.front(), {.run = run, .end = [kernel] { kernel->end(); }})) return ncclSuccess;
  kernel->end();
  note_error("cuLaunchKernel failed");
  return ncclUnhandledCudaError;
}

}  // namespace fake_nccl
