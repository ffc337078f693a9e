// What communicates nothing: version, names, ranks, memory, users' reductions.
#include <cstring>

#include "cuda_side.hpp"
#include "group.hpp"

namespace fake_nccl {
namespace {

ncclResult_t ready(ncclComm_t comm, const char* function) {
  const ncclResult_t result = check_comm(comm, function);
  return result == ncclSuccess ? ensure_ready(comm) : result;
}

}  // namespace

FAKE_NCCL_EXPORT ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = settings().version;
  return ncclSuccess;
}

FAKE_NCCL_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {  // init.cc, the same words
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    case ncclTimeout: return "timeout";
    default: return "unknown result code";
  }
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int* size) {
  const ncclResult_t result = ready(comm, "ncclCommCount");
  if (result == ncclSuccess) *size = comm->size;
  return result;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  const ncclResult_t result = ready(comm, "ncclCommCuDevice");
  if (result == ncclSuccess) *device = comm->place.device;
  return result;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const ncclResult_t result = ready(comm, "ncclCommUserRank");
  if (result == ncclSuccess) *rank = comm->rank;
  return result;
}

/// enqueue.cc, ncclRedOpCreatePreMulSum: a scalar of the host is read now, one of the device when the work runs.
FAKE_NCCL_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  if (const auto result = ready(comm, "ncclRedOpCreatePreMulSum"); result != ncclSuccess) return result;
  const std::size_t bytes = size_of(type);
  if (bytes == 0) return ncclInternalError;
  Reduction reduction{.kind = Reduction::Kind::scaled_sum,
                      .scalar_in_memory = residence == ncclScalarDevice,
                      .scalar = scalar,
                      .immediate = 0};
  if (residence == ncclScalarHostImmediate) std::memcpy(&reduction.immediate, scalar, bytes);
  const int number = comm->next_reduction++;
  comm->reductions.emplace(number, reduction);
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}

FAKE_NCCL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  if (op < ncclNumOps || comm == nullptr) return ncclInvalidArgument;
  if (const auto result = check_comm(comm, "ncclRedOpDestroy"); result != ncclSuccess) return result;
  return comm->reductions.erase(static_cast<int>(op)) == 1 ? ncclSuccess : ncclInvalidArgument;
}

FAKE_NCCL_EXPORT ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const auto ordered = suffer_call(take_faults("MemAlloc", -1), [] { return false; })) return *ordered;
  if (memory == nullptr || bytes == 0) return ncclInvalidArgument;
  return allocate(memory, bytes) ? ncclSuccess : ncclUnhandledCudaError;
}
FAKE_NCCL_EXPORT ncclResult_t ncclMemFree(void* memory) {
  return memory == nullptr || release(memory) ? ncclSuccess : ncclUnhandledCudaError;
}

/// register/register.cc: local; the handle is what deregistering wants back.
FAKE_NCCL_EXPORT ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t bytes, void** handle) {
  if (const auto result = check_comm(comm, "ncclCommRegister"); result != ncclSuccess) return result;
  if (const auto ordered = suffer_call(take_faults("CommRegister", comm), [] { return false; })) return *ordered;
  if (buffer == nullptr || handle == nullptr || bytes == 0) return ncclInvalidArgument;
  *handle = buffer;
  comm->registered[buffer] = bytes;
  return ncclSuccess;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (const auto result = check_comm(comm, "ncclCommDeregister"); result != ncclSuccess) return result;
  if (handle == nullptr) return ncclSuccess;
  if (comm->registered.erase(handle) == 1) return ncclSuccess;
  note_error("Deregister: Could not find handle");
  return ncclInvalidUsage;
}

/// dev_runtime.cc: a collective of the communicator, so all ranks must call it; a job of the group.
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes,
                                                     ncclWindow_t* window, int /*flags*/) {
  if (const auto result = check_comm(comm, "ncclCommWindowRegister"); result != ncclSuccess) return result;
  group_start();
  ncclResult_t result = ensure_ready(comm);
  if (result == ncclSuccess && (buffer == nullptr || window == nullptr || bytes == 0)) result = ncclInvalidArgument;
  if (result == ncclSuccess) {
    const auto work = [comm, buffer, bytes, window, faults = take_faults("CommWindowRegister", comm)] {
      PeerWatch watch(comm);
      const Stop stop = [&] { return watch.stopped(); };
      if (const auto ordered = suffer_call(faults, stop)) return *ordered;
      if (!comm->room->exchange(comm->rank, "", 1, stop)) return ncclInternalError;
      comm->room->exchanged(comm->rank);
      comm->registered[buffer] = bytes;
      *window = static_cast<ncclWindow_t>(buffer);
      return ncclSuccess;
    };
    result = add_job({.comm = comm, .work = work});
  }
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return result == ncclSuccess ? ended : result;
}
FAKE_NCCL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (const auto result = check_comm(comm, "ncclCommWindowDeregister"); result != ncclSuccess) return result;
  if (window == nullptr) return ncclSuccess;
  return comm->registered.erase(window) == 1 ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace fake_nccl
