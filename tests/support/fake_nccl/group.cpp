#include "group.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "cuda_side.hpp"

namespace fake_nccl {
namespace {

struct CommTasks {
  ncclComm_t comm;
  std::vector<Task> tasks;
};

/// A thread's group (group.cc:27): unless its depth returns to 0, later calls of the thread wait in vain.
struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  int blocking = -1;  ///< -1: unknown yet
  std::vector<Job> jobs;
  std::vector<CommTasks> tasks;
};
thread_local Group group;  // NOLINT(*-avoid-non-const-global-variables)

bool is_blocking(ncclComm_t comm) { return comm->config.blocking != 0; }

/// A communicator that is being destroyed makes its group block (group.cc:50).
ncclResult_t note_mode(ncclComm_t comm) {
  if (comm->destroy_called) {
    group.blocking = 1;
  } else if (group.blocking == -1) {
    group.blocking = is_blocking(comm) ? 1 : 0;
  } else if ((group.blocking == 1) != is_blocking(comm)) {
    note_error("Blocking and nonblocking communicators are not allowed in the same group.");
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

std::vector<ncclComm_t> comms_of(const Group& all) {
  std::vector<ncclComm_t> comms;
  const auto add = [&](ncclComm_t comm) {
    if (std::find(comms.begin(), comms.end(), comm) == comms.end()) comms.push_back(comm);
  };
  for (const Job& job : all.jobs) add(job.comm);
  for (const CommTasks& tasks : all.tasks) add(tasks.comm);
  return comms;
}

/// group.cc, asyncJobLaunch: one thread per job, so that several ranks of one process can rendezvous.
ncclResult_t run_jobs(const std::vector<Job>& jobs) {
  if (jobs.size() == 1) return jobs.front().work();
  std::vector<ncclResult_t> results(jobs.size(), ncclSuccess);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = jobs[i].work(); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed = std::find_if(results.begin(), results.end(), [](ncclResult_t r) { return r != ncclSuccess; });
  return failed == results.end() ? ncclSuccess : *failed;
}

/// transport.cc, ncclTransportRingConnect with NCCL_RUNTIME_CONNECT=1: the first collective connects, together with all
/// ranks.
ncclResult_t connect(ncclComm_t comm, const std::vector<Task>& tasks) {
  const bool collective = std::any_of(tasks.begin(), tasks.end(), [](const Task& task) {
    return task.function != Function::send && task.function != Function::receive;
  });
  if (!settings().lazy_connect || !collective || comm->connected) return ncclSuccess;
  PeerWatch watch(comm);
  const auto room = comm->room;
  if (room->exchange(comm->rank, "", 1, [&] { return watch.stopped(); })) {
    room->exchanged(comm->rank);
    comm->connected = true;
    return ncclSuccess;
  }
  return ncclInternalError;
}

ncclResult_t launch_all(const Group& all) {
  ncclResult_t result = all.jobs.empty() ? ncclSuccess : run_jobs(all.jobs);
  for (const CommTasks& comm : all.tasks) {
    if (result != ncclSuccess) break;
    const Stop stop = [&] { return comm.comm->abort_flag->load(); };
    for (const Task& task : comm.tasks) suffer_launch(task.faults, stop);
    result = connect(comm.comm, comm.tasks);
    if (result == ncclSuccess && !*comm.comm->abort_flag) result = launch(comm.comm, comm.tasks);
  }
  for (ncclComm_t comm : comms_of(all)) {
    if (!is_blocking(comm) && !comm->destroy_called) set_async_result(comm, result);
  }
  return result;
}

/// group.cc:822: every communicator is in progress, a thread launches, and the caller continues: streams get the work
/// after it returns.
ncclResult_t launch_later(Group all) {
  const auto job = std::make_shared<GroupJob>();
  for (ncclComm_t comm : comms_of(all)) {
    set_async_result(comm, ncclInProgress);
    const std::lock_guard lock(comm->mutex);
    if (!comm->group_job) comm->group_job = job;
  }
  // The thread reports success as its last act, which makes others join it: it must be registered before.
  auto shared = std::make_shared<Group>(std::move(all));
  const auto go = std::make_shared<std::atomic<bool>>(false);
  job->thread = std::thread([shared, go] {
    wait_until([&] { return go->load(); }, [] { return false; });
    jitter();
    launch_all(*shared);
  });
  *go = true;
  return ncclInProgress;
}

}  // namespace

void group_start() { ++group.depth; }

ncclResult_t note_group_error(ncclResult_t result) {
  const bool failed = result != ncclSuccess && result != ncclInProgress;
  if (group.depth > 0 && failed && group.error == ncclSuccess) group.error = result;
  return result;
}

ncclResult_t end_call(ncclComm_t comm, ncclResult_t result) {
  const bool blocking = comm->config.blocking != 0;
  if (result != ncclSuccess && !blocking) set_async_result(comm, result);
  note_group_error(result);
  const ncclResult_t ended = group_end();
  if (ended != ncclSuccess && ended != ncclInProgress) return ended;
  return blocking ? result : async_state(comm);
}

ncclResult_t add_job(Job job) {
  const ncclResult_t result = note_mode(job.comm);
  if (result == ncclSuccess) group.jobs.push_back(std::move(job));
  return result;
}

ncclResult_t add_task(ncclComm_t comm, Task task) {
  if (const auto result = note_mode(comm); result != ncclSuccess) return result;
  auto known = std::find_if(group.tasks.begin(), group.tasks.end(), [&](const auto& t) { return t.comm == comm; });
  if (known == group.tasks.end()) known = group.tasks.insert(known, CommTasks{comm, {}});
  known->tasks.push_back(std::move(task));
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (group.depth == 0) {
    complain("ncclGroupEnd: not in a group call.");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  Group all;
  std::swap(all, group);
  if (all.error != ncclSuccess) {  // nothing is launched
    for (ncclComm_t comm : comms_of(all)) {
      if (!is_blocking(comm)) set_async_result(comm, all.error);
    }
    return all.error;
  }
  if (all.jobs.empty() && all.tasks.empty()) return ncclSuccess;
  return all.blocking == 0 ? launch_later(std::move(all)) : launch_all(all);
}

FAKE_NCCL_EXPORT ncclResult_t ncclGroupStart() {
  group_start();
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclGroupEnd() { return group_end(); }

// The functions that communicate: argument checks, and tasks of the current group.

namespace {

std::size_t bytes_of(const Task& task) { return task.count * size_of(task.type); }

Task task_of(Function function, const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
             int root, cudaStream_t stream) {
  return {.function = function,
          .send = send,
          .receive = receive,
          .count = count,
          .type = type,
          .op = op,
          .root = root,
          .stream = stream};
}

/// argcheck.cc, ArgsCheck. Pointers are checked when the work runs, as NCCL does without NCCL_CHECK_MODE.
ncclResult_t check_arguments(ncclComm_t comm, const char* name, const Task& task) {
  const auto invalid = [&](const char* what) {
    note_error(std::string(name) + " : " + what);
    return ncclInvalidArgument;
  };
  if (task.root < 0 || task.root >= comm->size) return invalid("invalid root");
  if (size_of(task.type) == 0) return invalid("invalid type");
  if (task.op >= ncclNumOps && comm->reductions.count(static_cast<int>(task.op)) == 0) {
    return invalid("reduction operation unknown to this communicator");
  }
  return ncclSuccess;
}

/// enqueue.cc, hostToDevRedOp: read now, since the operation may be destroyed before the group ends.
void resolve_reduction(ncclComm_t comm, Task& task) {
  using Kind = Reduction::Kind;
  constexpr std::array kBuiltIn{Kind::sum, Kind::product, Kind::maximum, Kind::minimum, Kind::average};
  if (task.op < ncclNumOps) {
    task.reduction.kind = kBuiltIn.at(task.op);
  } else {
    task.reduction = comm->reductions.at(static_cast<int>(task.op));
  }
}

/// enqueue.cc:3119, ncclEnqueueCheck; @p append adds tasks.
template <class Append>
ncclResult_t enqueue_checked(const char* name, ncclComm_t comm, Task task, Append&& append) {
  if (const auto result = check_comm(comm, name); result != ncclSuccess) return note_group_error(result);
  if (comm->revoked) {
    note_error(std::string(name) + ": communicator was revoked");
    return note_group_error(ncclInvalidUsage);
  }
  group_start();
  task.faults = take_faults(name, comm);
  const auto ordered = suffer_call(task.faults, [&] { return comm->abort_flag->load(); });
  ncclResult_t result = ordered ? *ordered : ensure_ready(comm);
  if (result == ncclSuccess) result = check_arguments(comm, name, task);
  if (result == ncclSuccess) {
    resolve_reduction(comm, task);
    result = append(std::move(task));
  }
  return end_call(comm, result);
}

/// Empty collectives are dropped (enqueue.cc:3024).
ncclResult_t enqueue_collective(const char* name, ncclComm_t comm, Task task) {
  return enqueue_checked(name, comm, std::move(task), [comm](Task checked) {
    return checked.count == 0 ? ncclSuccess : add_task(comm, std::move(checked));
  });
}
ncclResult_t enqueue_transfer(const char* name, ncclComm_t comm, Task task) {
  return enqueue_checked(name, comm, std::move(task),
                         [comm](Task checked) { return add_task(comm, std::move(checked)); });
}

/// One part of a rank's exchange with all ranks, or with the root: NCCL also turns these into sends and receives
/// (enqueue.cc:3070-3112).
ncclResult_t add_transfer(ncclComm_t comm, const Task& whole, Function function, int peer, std::size_t part) {
  Task task = whole;
  task.function = function;
  task.root = peer;
  const std::size_t offset = part * bytes_of(whole);
  if (function == Function::send) task.send = static_cast<const std::byte*>(whole.send) + offset;
  if (function == Function::receive) task.receive = static_cast<std::byte*>(whole.receive) + offset;
  return add_task(comm, std::move(task));
}

enum class Parts { all, own };

/// With the ranks from @p first to before @p end.
ncclResult_t add_transfers(ncclComm_t comm, const Task& whole, Function function, int first, int end, Parts parts) {
  for (int peer = first; peer < end; ++peer) {
    const std::size_t part = parts == Parts::all ? static_cast<std::size_t>(peer) : 0;
    if (const auto result = add_transfer(comm, whole, function, peer, part); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace

FAKE_NCCL_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("AllReduce", comm,
                            task_of(Function::all_reduce, send, receive, count, type, op, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("Reduce", comm, task_of(Function::reduce, send, receive, count, type, op, root, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("Broadcast", comm,
                            task_of(Function::broadcast, send, receive, count, type, ncclSum, root, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("AllGather", comm,
                            task_of(Function::all_gather, send, receive, count, type, ncclSum, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("ReduceScatter", comm,
                            task_of(Function::reduce_scatter, send, receive, count, type, op, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclSend(const void* buffer, std::size_t count, ncclDataType_t type, int peer,
                                       ncclComm_t comm, cudaStream_t stream) {
  return enqueue_transfer("Send", comm, task_of(Function::send, buffer, nullptr, count, type, ncclSum, peer, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclRecv(void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                       cudaStream_t stream) {
  return enqueue_transfer("Recv", comm,
                          task_of(Function::receive, nullptr, buffer, count, type, ncclSum, peer, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked(
      "AlltoAll", comm, task_of(Function::send, send, receive, count, type, ncclSum, 0, stream),
      [comm](const Task& task) {
        if (task.count == 0) return ncclSuccess;
        const auto sent = add_transfers(comm, task, Function::send, 0, comm->size, Parts::all);
        return sent == ncclSuccess ? add_transfers(comm, task, Function::receive, 0, comm->size, Parts::all) : sent;
      });
}

FAKE_NCCL_EXPORT ncclResult_t ncclGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                         int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked("Gather", comm, task_of(Function::send, send, receive, count, type, ncclSum, root, stream),
                         [comm](const Task& task) {
                           if (task.count == 0) return ncclSuccess;
                           const auto sent =
                               add_transfers(comm, task, Function::send, task.root, task.root + 1, Parts::own);
                           if (sent != ncclSuccess || comm->rank != task.root) return sent;
                           return add_transfers(comm, task, Function::receive, 0, comm->size, Parts::all);
                         });
}

FAKE_NCCL_EXPORT ncclResult_t ncclScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                          int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked("Scatter", comm, task_of(Function::send, send, receive, count, type, ncclSum, root, stream),
                         [comm](const Task& task) {
                           if (task.count == 0) return ncclSuccess;
                           const auto received =
                               add_transfers(comm, task, Function::receive, task.root, task.root + 1, Parts::own);
                           if (received != ncclSuccess || comm->rank != task.root) return received;
                           return add_transfers(comm, task, Function::send, 0, comm->size, Parts::all);
                         });
}

namespace {

/// How many operations a device runs now: kernels that wait for others occupy it, so two communicators used in
/// different order on two ranks can wait for each other (collectives.md 4.4).
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

  // For the group's other streams.
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
