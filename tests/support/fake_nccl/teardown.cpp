// Ends of communicators: finalize, destroy, abort, revoke.
#include "group.hpp"
#include "registrations.hpp"

namespace fake_nccl {
namespace {

const Stop kNeverEnds = [] { return false; };

/// init.cc, commDestroySync: what was launched is waited for. Aborted kernels end by themselves; one that never looks
/// at the flag (kernel_stuck) makes this hang.
void wait_for_device(ncclComm_t comm) {
  wait_until([&] { return comm->order.idle(); }, kNeverEnds);
}

/// init.cc, commReclaim. NCCL frees the resources of all ranks of a process with the last of them; here each its own.
ncclResult_t reclaim(ncclComm_t comm) {
  if (comm->initialized) wait_for_device(comm);
  if (comm->room) comm->room->leave(comm->rank);
  complete_job(comm);
  forget_all(comm);
  comm->alive = false;
  comm->room.reset();
  return ncclSuccess;
}

void set_abort_flags(ncclComm_t comm, bool value) {
  {
    const std::lock_guard lock(comm->mutex);
    if (comm->child_abort_flag) *comm->child_abort_flag = value;
  }
  *comm->abort_flag = value;
}

}  // namespace

/// init.cc:2783
FAKE_NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommFinalize"); result != ncclSuccess) return result;
  group_start();
  if (const auto result = ensure_ready(comm); result != ncclSuccess) return end_call(comm, result);
  // Also after a revoke.
  if (comm->finalize_called.exchange(true)) return end_call(comm, ncclInvalidArgument);
  const auto work = [comm, faults = take_faults("CommFinalize", comm)] {
    if (const auto ordered = suffer_call(faults, [&] { return comm->abort_flag->load(); })) return *ordered;
    wait_for_device(comm);
    return ncclSuccess;
  };
  return end_call(comm, add_job({.comm = comm, .work = work}));
}

/// init.cc:2878. The early returns leave the group open, as there: the thread's later calls are queued without end.
FAKE_NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  group_start();
  if (!comm->alive) {
    complain("comm has already been destroyed; the group that ncclCommDestroy began stays open");
    return ncclInvalidArgument;
  }
  comm->destroy_called = true;
  if (const auto result = ensure_ready(comm); result != ncclSuccess) {
    complain("ncclCommDestroy of a communicator that is not ready leaves its group open");
    return result;
  }
  const auto ordered = suffer_call(take_faults("CommDestroy", comm), kNeverEnds);
  // An internal group, which blocks, since the communicator is being destroyed; also where it was made not to.
  const ncclResult_t result = ordered ? *ordered : add_job({.comm = comm, .work = [comm] { return reclaim(comm); }});
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return ended == ncclSuccess ? result : ended;
}

/// init.cc:3024. Ends the kernels of this rank only; others go on waiting.
FAKE_NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommAbort"); result != ncclSuccess) return result;
  group_start();
  set_abort_flags(comm, true);
  comm->destroy_called = true;
  ensure_ready(comm);  // joins the thread of init, whatever it says
  const auto ordered = suffer_call(take_faults("CommAbort", comm), kNeverEnds);
  const ncclResult_t result = ordered ? *ordered : add_job({.comm = comm, .work = [comm] { return reclaim(comm); }});
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return ended == ncclSuccess ? result : ended;
}

/// init.cc:2969
FAKE_NCCL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  if (comm == nullptr) return ncclSuccess;
  if (const auto result = check_comm(comm, "ncclCommRevoke"); result != ncclSuccess) return result;
  if (flags != kRevokeDefault || comm->destroy_called || comm->finalize_called || comm->revoked) {
    return ncclInvalidArgument;
  }
  group_start();
  set_abort_flags(comm, true);
  comm->revoked = true;
  ensure_ready(comm);
  comm->finalize_called = true;
  const auto work = [comm, faults = take_faults("CommRevoke", comm)] {
    if (const auto ordered = suffer_call(faults, kNeverEnds)) return *ordered;
    wait_for_device(comm);
    set_abort_flags(comm, false);
    set_async_result(comm, ncclSuccess);
    return ncclSuccess;
  };
  return end_call(comm, add_job({.comm = comm, .work = work}));
}

}  // namespace fake_nccl
