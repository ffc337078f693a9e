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
/// info.h, ncclGroupErrCheck: the first error makes the whole group fail.
ncclResult_t note_group_error(ncclResult_t result);
/// group.cc:33: in a group of communicators in both modes it is an error.
ncclResult_t add_job(Job job);
ncclResult_t add_task(ncclComm_t comm, Task task);

}  // namespace fake_nccl
