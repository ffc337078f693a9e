// What communicates nothing: version, names, ranks, users' reductions.
#include <cstring>

#include "cuda_side.hpp"
#include "fake_nccl.hpp"
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
  if (const auto ordered = suffer_call(take_faults("RedOpCreatePreMulSum", comm), [] { return false; }))
    return *ordered;
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
  if (const auto ordered = suffer_call(take_faults("RedOpDestroy", comm), [] { return false; })) return *ordered;
  return comm->reductions.erase(static_cast<int>(op)) == 1 ? ncclSuccess : ncclInvalidArgument;
}

}  // namespace fake_nccl

const char* fake_nccl_comm_names() {
  thread_local std::string names;
  names.clear();
  for (ncclComm* comm : fake_nccl::live_comms()) {
    if (comm->config.commName != nullptr) names += comm->config.commName;
    names += "\n";
  }
  return names.c_str();
}
