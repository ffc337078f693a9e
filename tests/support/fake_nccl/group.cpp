#include "group.hpp"

#include <algorithm>

namespace fake_nccl {
namespace {

struct CommTasks {
  ncclComm_t comm;
  std::vector<Task> tasks;
};

/// Of a thread (group.cc:27): a depth that is not brought back to 0 makes later calls of the thread wait in vain.
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

/// group.cc, asyncJobLaunch: a thread each, so that several ranks of one process can meet.
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

/// transport.cc, ncclTransportRingConnect with NCCL_RUNTIME_CONNECT=1: the first collective connects, with all ranks.
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

/// group.cc:822: every communicator is in progress, a thread launches, and the caller goes on: streams get the work
/// later than it returns.
ncclResult_t launch_later(Group all) {
  const auto job = std::make_shared<GroupJob>();
  for (ncclComm_t comm : comms_of(all)) {
    set_async_result(comm, ncclInProgress);
    const std::lock_guard lock(comm->mutex);
    if (!comm->group_job) comm->group_job = job;
  }
  // The thread reports success as its last act, upon which others join it: it must be in place before.
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

}  // namespace fake_nccl
