// Groups: everything that a thread calls between ncclGroupStart and ncclGroupEnd, and each call by itself.
#pragma once

#include <functional>

#include "launch.hpp"

namespace fake_nccl {

/// What a thread of its own does (group.cc: ncclAsyncJob).
struct Job {
  ncclComm_t comm;  ///< the one that is in progress meanwhile
  std::function<ncclResult_t()> work;
};

void group_start();
/// group.cc: ncclGroupEndInternal
ncclResult_t group_end();
/// The end of a call of one communicator, which went @p result: also the group's end if it is alone. Returns what the
/// call does; of a communicator that does not block its state, as a rule ncclInProgress (enqueue.cc:3165).
ncclResult_t end_call(ncclComm_t comm, ncclResult_t result);
/// info.h, ncclGroupErrCheck: the first error makes the whole group fail.
ncclResult_t note_group_error(ncclResult_t result);
/// group.cc:33: in a group of communicators in both modes it is an error.
ncclResult_t add_job(Job job);
ncclResult_t add_task(ncclComm_t comm, Task task);

}  // namespace fake_nccl
