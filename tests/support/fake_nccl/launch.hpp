// What a group puts on streams: the operations of one communicator as one kernel.
#pragma once

#include <vector>

#include "comm.hpp"

namespace fake_nccl {

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

}  // namespace fake_nccl
