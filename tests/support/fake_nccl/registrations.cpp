// Memory of NCCL's, and what communicators know: ncclMemAlloc, ncclCommRegister, windows.
#include "registrations.hpp"

#include <map>
#include <mutex>

#include "cuda_side.hpp"
#include "group.hpp"
#include "tests/support/fake_nccl/fake_nccl.hpp"

namespace fake_nccl {
namespace {

/// Of all communicators of the process.
struct Known {
  std::mutex mutex;
  std::map<std::pair<ncclComm_t, void*>, int> times;
};
Known& known() {
  static auto* const all = new Known;
  return *all;
}

/// NCCL counts registrations of the same memory (register/register.cc); who does it by mistake is told.
void know(ncclComm_t comm, void* buffer) {
  const std::lock_guard lock(known().mutex);
  if (++known().times[{comm, buffer}] > 1) complain("memory is registered twice with one communicator");
}

bool forget(ncclComm_t comm, void* buffer) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().times.find({comm, buffer});
  if (found == known().times.end()) return false;
  if (--found->second == 0) known().times.erase(found);
  return true;
}

bool is_known(void* buffer) {
  const std::lock_guard lock(known().mutex);
  for (const auto& [which, times] : known().times) {
    if (which.second == buffer) return true;
  }
  return false;
}

/// ncclCommRegister and ncclCommDeregister do not look whether the communicator is ready (register/register.cc), while
/// a thread of NCCL may look into what they change.
void check_idle(ncclComm_t comm, const char* function) {
  if (async_state(comm) == ncclInProgress) {
    complain(std::string(function) + " while an earlier call of the communicator is in progress");
  }
}

/// Deregistering unmaps: the driver may wait for the device, whose kernels end with the communicator's abort.
std::optional<ncclResult_t> suffer(const char* function, ncclComm_t comm) {
  return suffer_call(take_faults(function, comm), [comm] { return comm->abort_flag->load(); });
}

}  // namespace

void forget_all(ncclComm_t comm) {
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().times, [&](const auto& each) { return each.first.first == comm; });
}

FAKE_NCCL_EXPORT ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const auto ordered = suffer_call(take_faults("MemAlloc", -1), [] { return false; })) return *ordered;
  if (memory == nullptr || bytes == 0) return ncclInvalidArgument;
  return allocate(memory, bytes) ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_NCCL_EXPORT ncclResult_t ncclMemFree(void* memory) {
  if (const auto ordered = suffer_call(take_faults("MemFree", -1), [] { return false; })) return *ordered;
  if (memory != nullptr && is_known(memory)) complain("ncclMemFree of memory that a communicator knows");
  return memory == nullptr || release(memory) ? ncclSuccess : ncclUnhandledCudaError;
}

/// register/register.cc: local; the handle is what deregistering wants back.
FAKE_NCCL_EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t bytes, void** handle) {
  if (const auto result = check_comm(comm, "ncclCommRegister"); result != ncclSuccess) return result;
  check_idle(comm, "ncclCommRegister");
  if (const auto ordered = suffer("CommRegister", comm)) return *ordered;
  if (buffer == nullptr || handle == nullptr || bytes == 0) return ncclInvalidArgument;
  if (!touch(buffer, bytes)) complain("ncclCommRegister of what is no memory of a device");
  *handle = buffer;
  know(comm, buffer);
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (const auto result = check_comm(comm, "ncclCommDeregister"); result != ncclSuccess) return result;
  check_idle(comm, "ncclCommDeregister");
  if (const auto ordered = suffer("CommDeregister", comm)) return *ordered;
  if (handle == nullptr) return ncclSuccess;
  if (forget(comm, handle)) return ncclSuccess;
  note_error("Deregister: Could not find handle");
  return ncclInvalidUsage;
}

/// dev_runtime.cc: a collective of the communicator, so all ranks must call it; a job of the group, which is a success
/// while it is only begun.
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes,
                                                     ncclWindow_t* window, int /*flags*/) {
  if (const auto result = check_comm(comm, "ncclCommWindowRegister"); result != ncclSuccess) return result;
  group_start();
  ncclResult_t result = ensure_ready(comm);
  if (result == ncclSuccess && (buffer == nullptr || window == nullptr || bytes == 0)) result = ncclInvalidArgument;
  if (result == ncclSuccess) {
    const auto work = [comm, buffer, window, faults = take_faults("CommWindowRegister", comm)] {
      PeerWatch watch(comm);
      const Stop stop = [&] { return watch.stopped(); };
      if (const auto ordered = suffer_call(faults, stop)) return *ordered;
      if (!comm->room->exchange(comm->rank, "", 1, stop)) return ncclInternalError;
      comm->room->exchanged(comm->rank);
      know(comm, buffer);
      *window = static_cast<ncclWindow_t>(buffer);
      return ncclSuccess;
    };
    result = add_job({.comm = comm, .work = work});
  }
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return result == ncclSuccess && ended != ncclInProgress ? ended : result;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (const auto result = check_comm(comm, "ncclCommWindowDeregister"); result != ncclSuccess) return result;
  check_idle(comm, "ncclCommWindowDeregister");
  if (const auto ordered = suffer("CommWindowDeregister", comm)) return *ordered;
  if (window == nullptr) return ncclSuccess;
  return forget(comm, window) ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace fake_nccl

int fake_nccl_registrations() {
  const std::lock_guard lock(fake_nccl::known().mutex);
  return static_cast<int>(fake_nccl::known().times.size());
}
