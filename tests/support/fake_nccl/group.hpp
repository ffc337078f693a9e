// Groups: everything that a thread calls between ncclGroupStart and ncclGroupEnd, and each call by itself.
#pragma once

#include <functional>
#include <vector>

#include "comm.hpp"

namespace fake_nccl {

// What a group puts on streams: the operations of one communicator as one kernel.

enum class Function : std::uint32_t { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, receive };

struct Task {
  Function function;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  Reduction reduction{};
  int root = 0;  ///< or peer
  cudaStream_t stream = nullptr;
  std::vector<Fault> faults{};
};

/// Puts @p tasks on their streams: on the first, which the others' then wait for, and which waits for theirs.
ncclResult_t launch(ncclComm_t comm, std::vector<Task> tasks);

/// Runs a collective with the other ranks. False: stopped. On the stream's thread.
bool run_collective(ncclComm_t comm, Room& room, const Task& task, PeerWatch& watch);
/// Runs sends and receives at the same time.
bool run_transfers(ncclComm_t comm, Room& room, const std::vector<const Task*>& tasks, PeerWatch& watch);

/// Whether the task's buffers can be touched, when it runs.
bool touch_buffers(ncclComm_t comm, const Task& task);

/// Ranks called different things: in strict mode it is told, and ends the operation; else it hangs until aborted.
bool mismatch(ncclComm_t comm, PeerWatch& watch, const std::string& text);

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
