// The functions that communicate: checks, and tasks of the current group.
#include <array>
#include <optional>

#include "cuda_side.hpp"
#include "group.hpp"

namespace fake_nccl {
namespace {

std::size_t bytes_of(const Task& task) { return task.count * size_of(task.type); }

Task task_of(Function function, const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
             int root, cudaStream_t stream) {
  return {.function = function,
          .send = send,
          .receive = receive,
          .count = count,
          .type = type,
          .op = op,
          .root = root,
          .stream = stream};
}

/// argcheck.cc, ArgsCheck. Pointers are looked at when the work runs, as NCCL does without NCCL_CHECK_MODE.
ncclResult_t check_arguments(ncclComm_t comm, const char* name, const Task& task) {
  const auto invalid = [&](const char* what) {
    note_error(std::string(name) + " : " + what);
    return ncclInvalidArgument;
  };
  if (task.root < 0 || task.root >= comm->size) return invalid("invalid root");
  if (size_of(task.type) == 0) return invalid("invalid type");
  if (task.op >= ncclNumOps && comm->reductions.count(static_cast<int>(task.op)) == 0) {
    return invalid("reduction operation unknown to this communicator");
  }
  return ncclSuccess;
}

/// enqueue.cc, hostToDevRedOp: read now, since the operation may be destroyed before the group ends.
void resolve_reduction(ncclComm_t comm, Task& task) {
  using Kind = Reduction::Kind;
  constexpr std::array kBuiltIn{Kind::sum, Kind::product, Kind::maximum, Kind::minimum, Kind::average};
  if (task.op < ncclNumOps) {
    task.reduction.kind = kBuiltIn.at(task.op);
  } else {
    task.reduction = comm->reductions.at(static_cast<int>(task.op));
  }
}

/// enqueue.cc:3119, ncclEnqueueCheck; @p append adds tasks.
template <class Append>
ncclResult_t enqueue_checked(const char* name, ncclComm_t comm, Task task, Append&& append) {
  if (const auto result = check_comm(comm, name); result != ncclSuccess) return note_group_error(result);
  if (comm->revoked) {
    note_error(std::string(name) + ": communicator was revoked");
    return note_group_error(ncclInvalidUsage);
  }
  group_start();
  task.faults = take_faults(name, comm);
  const auto ordered = suffer_call(task.faults, [&] { return comm->abort_flag->load(); });
  ncclResult_t result = ordered ? *ordered : ensure_ready(comm);
  if (result == ncclSuccess) result = check_arguments(comm, name, task);
  if (result == ncclSuccess) {
    resolve_reduction(comm, task);
    result = append(std::move(task));
  }
  return end_call(comm, result);
}

/// Empty collectives are dropped (enqueue.cc:3024).
ncclResult_t enqueue_collective(const char* name, ncclComm_t comm, Task task) {
  return enqueue_checked(name, comm, std::move(task), [comm](Task checked) {
    return checked.count == 0 ? ncclSuccess : add_task(comm, std::move(checked));
  });
}
ncclResult_t enqueue_transfer(const char* name, ncclComm_t comm, Task task) {
  return enqueue_checked(name, comm, std::move(task),
                         [comm](Task checked) { return add_task(comm, std::move(checked)); });
}

/// One part of what a rank exchanges with all, or with the root: NCCL makes sends and receives of these, too
/// (enqueue.cc:3070-3112).
ncclResult_t add_transfer(ncclComm_t comm, const Task& whole, Function function, int peer, std::size_t part) {
  Task task = whole;
  task.function = function;
  task.root = peer;
  const std::size_t offset = part * bytes_of(whole);
  if (function == Function::send) task.send = static_cast<const std::byte*>(whole.send) + offset;
  if (function == Function::receive) task.receive = static_cast<std::byte*>(whole.receive) + offset;
  return add_task(comm, std::move(task));
}

enum class Parts { all, own };

/// With the ranks from @p first to before @p end.
ncclResult_t add_transfers(ncclComm_t comm, const Task& whole, Function function, int first, int end, Parts parts) {
  for (int peer = first; peer < end; ++peer) {
    const std::size_t part = parts == Parts::all ? static_cast<std::size_t>(peer) : 0;
    if (const auto result = add_transfer(comm, whole, function, peer, part); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

}  // namespace

FAKE_NCCL_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("AllReduce", comm,
                            task_of(Function::all_reduce, send, receive, count, type, op, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("Reduce", comm, task_of(Function::reduce, send, receive, count, type, op, root, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("Broadcast", comm,
                            task_of(Function::broadcast, send, receive, count, type, ncclSum, root, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                            ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("AllGather", comm,
                            task_of(Function::all_gather, send, receive, count, type, ncclSum, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective("ReduceScatter", comm,
                            task_of(Function::reduce_scatter, send, receive, count, type, op, 0, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclSend(const void* buffer, std::size_t count, ncclDataType_t type, int peer,
                                       ncclComm_t comm, cudaStream_t stream) {
  return enqueue_transfer("Send", comm, task_of(Function::send, buffer, nullptr, count, type, ncclSum, peer, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclRecv(void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                       cudaStream_t stream) {
  return enqueue_transfer("Recv", comm,
                          task_of(Function::receive, nullptr, buffer, count, type, ncclSum, peer, stream));
}

FAKE_NCCL_EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked(
      "AlltoAll", comm, task_of(Function::send, send, receive, count, type, ncclSum, 0, stream),
      [comm](const Task& task) {
        if (task.count == 0) return ncclSuccess;
        const auto sent = add_transfers(comm, task, Function::send, 0, comm->size, Parts::all);
        return sent == ncclSuccess ? add_transfers(comm, task, Function::receive, 0, comm->size, Parts::all) : sent;
      });
}

FAKE_NCCL_EXPORT ncclResult_t ncclGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                         int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked("Gather", comm, task_of(Function::send, send, receive, count, type, ncclSum, root, stream),
                         [comm](const Task& task) {
                           if (task.count == 0) return ncclSuccess;
                           const auto sent =
                               add_transfers(comm, task, Function::send, task.root, task.root + 1, Parts::own);
                           if (sent != ncclSuccess || comm->rank != task.root) return sent;
                           return add_transfers(comm, task, Function::receive, 0, comm->size, Parts::all);
                         });
}

FAKE_NCCL_EXPORT ncclResult_t ncclScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                          int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue_checked("Scatter", comm, task_of(Function::send, send, receive, count, type, ncclSum, root, stream),
                         [comm](const Task& task) {
                           if (task.count == 0) return ncclSuccess;
                           const auto received =
                               add_transfers(comm, task, Function::receive, task.root, task.root + 1, Parts::own);
                           if (received != ncclSuccess || comm->rank != task.root) return received;
                           return add_transfers(comm, task, Function::send, 0, comm->size, Parts::all);
                         });
}

}  // namespace fake_nccl
