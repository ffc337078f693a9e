#include "comm.hpp"

#include <chrono>

#include "fake_nccl.hpp"

namespace fake_nccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<ncclComm>> all;
};
Registry& registry() {
  static auto* registry = new Registry;  // NOLINT(*-owning-memory): communicators may be leaked
  return *registry;
}

}  // namespace

std::uint64_t LaunchOrder::take() {
  const std::lock_guard lock(mutex_);
  return taken_++;
}
bool LaunchOrder::is_turn(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return finished_ == ticket;
}
void LaunchOrder::finish(std::uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  if (ticket < finished_) return;
  early_.insert(ticket);
  while (early_.erase(finished_) != 0) ++finished_;
}
bool LaunchOrder::idle() const { return running() == 0; }
int LaunchOrder::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(taken_ - finished_ - early_.size());
}

ncclComm* make_comm() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  return known.all.emplace_back(std::make_unique<ncclComm>()).get();
}

std::vector<ncclComm*> live_comms() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::vector<ncclComm*> live;
  for (const auto& comm : known.all) {
    if (comm->alive) live.push_back(comm.get());
  }
  return live;
}

ncclResult_t check_comm(ncclComm_t comm, const char* function) {
  if (comm == nullptr) {
    note_error(std::string(function) + " : comm argument is NULL");
    return ncclInvalidArgument;
  }
  if (!comm->alive) {  // "Error: corrupted comm object detected", if it has not crashed
    complain(std::string(function) + " with a communicator that was destroyed or aborted");
    return ncclInvalidArgument;
  }
  return ncclSuccess;
}

void set_async_result(ncclComm_t comm, ncclResult_t result) { comm->async_result = result; }

ncclResult_t async_state(ncclComm_t comm) {
  const ncclResult_t state = comm->async_result;
  return state == ncclSuccess ? comm->background_error.load() : state;
}

void complete_job(ncclComm_t comm) {
  std::shared_ptr<GroupJob> job;
  {
    const std::lock_guard lock(comm->mutex);
    job.swap(comm->group_job);
  }
  if (job && !job->joined.exchange(true)) job->thread.join();
}

ncclResult_t ensure_ready(ncclComm_t comm) {
  if (*comm->abort_flag) {
    complete_job(comm);
    return ncclSuccess;
  }
  const ncclResult_t state = async_state(comm);
  if (state == ncclSuccess) complete_job(comm);
  if (state == ncclInProgress) {
    note_error("Attempt to use communicator before the previous operation returned ncclSuccess");
    return ncclInvalidArgument;
  }
  return state;
}

bool PeerWatch::stopped() {
  if (*comm_->abort_flag) return true;
  constexpr unsigned kPeriod = 200;  // some 20 ms
  if (++calls_ % kPeriod == 0 && settings().report_peers && room_) {
    if (const int missing = room_->missing(); missing >= 0 && comm_->background_error == ncclSuccess) {
      note_error("rank " + std::to_string(missing) + ": connection closed by remote peer");
      comm_->background_error = ncclRemoteError;
    }
  }
  return false;
}

std::vector<Fault> take_faults(const char* function, ncclComm_t comm) {
  std::vector<Fault> faults = take_faults(std::string_view(function), comm->rank);
  for (const Fault& fault : faults) {
    if (fault.action != Action::async) continue;
    std::thread([comm, fault] {  // communicators are never freed
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.value));
      comm->background_error = fault.result;
    })
        .detach();
  }
  return faults;
}

/// init.cc:3449: when it finds success, it joins the thread of the last group.
FAKE_NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const auto result = check_comm(comm, "ncclGetAsyncError"); result != ncclSuccess) return result;
  if (error == nullptr) return ncclInvalidArgument;
  if (faults_are_ordered()) {
    if (const auto ordered = suffer_call(take_faults("CommGetAsyncError", comm), [] { return false; })) return *ordered;
  }
  *error = async_state(comm);
  if (*error == ncclSuccess) complete_job(comm);
  return ncclSuccess;
}

}  // namespace fake_nccl

int fake_nccl_live_comms() { return static_cast<int>(fake_nccl::live_comms().size()); }

int fake_nccl_running() {
  int sum = 0;
  for (const auto* comm : fake_nccl::live_comms()) sum += comm->order.running();
  return sum;
}
