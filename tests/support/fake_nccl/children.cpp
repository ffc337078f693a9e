// Communicators made from others: split, shrink, grow.
#include <algorithm>
#include <cstring>

#include "comm.hpp"
#include "cuda_side.hpp"
#include "fake_nccl.hpp"
#include "group.hpp"

namespace fake_nccl {
namespace {

struct Choice {
  int color;
  int key;
};

void link(ncclComm_t parent, AbortFlag child) {
  const std::lock_guard lock(parent->mutex);
  parent->child_abort_flag = std::move(child);
}

/// In the job. init.cc, ncclCommInitRankFunc: the parent's abort does not reach a child that has been made.
ncclResult_t meet_child(ncclComm_t parent, ncclComm_t child, const std::string& name, const std::vector<Fault>& faults,
                        ncclComm_t* made) {
  const ncclResult_t result = meet(child, name, parent, faults);
  if (result == ncclSuccess) {
    link(parent, nullptr);
    *made = child;  // null until all is well
  }
  child->alive = result == ncclSuccess;
  return result;
}

/// init.cc, ncclCommInitChildComm: the child shares its parent's abort flag, or the parent's abort reaches it while it
/// is made.
ncclResult_t make_child(ncclComm_t parent, const ncclConfig_t* config, bool share, ncclComm_t* made) {
  ncclComm_t child = make_comm();
  child->place = parent->place;
  if (share) child->abort_flag = parent->abort_flag;
  link(parent, share ? nullptr : child->abort_flag);
  ncclResult_t result = ncclSuccess;
  if (config == nullptr) {
    child->config = parent->config;
    child->name = parent->name;
  } else {
    result = parse_config(child, config);
  }
  if (result != ncclSuccess) child->alive = false;
  *made = child;
  return result;
}

/// In the job: all ranks of the parent take part.
ncclResult_t split(ncclComm_t parent, ncclComm_t child, Choice mine, int number, ncclComm_t* made,
                   const std::vector<Fault>& faults) {
  Room& room = *parent->room;
  PeerWatch watch(parent);  // it talks over sockets
  const Stop stop = [&] { return watch.stopped(); };
  if (!room.exchange(parent->rank, &mine, sizeof mine, stop)) return ncclInternalError;
  std::vector<std::pair<int, int>> members;  // key, rank: so they are ordered (init.cc, commGetSplitInfo)
  for (int rank = 0; rank < room.size(); ++rank) {
    Choice other{};
    std::memcpy(&other, room.place(rank).talk, sizeof other);
    if (other.color == mine.color) members.emplace_back(other.key, rank);
  }
  room.exchanged(parent->rank);
  if (child == nullptr) return ncclSuccess;
  std::sort(members.begin(), members.end());
  const auto me = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.second == parent->rank; });
  child->rank = static_cast<int>(me - members.begin());
  child->size = static_cast<int>(members.size());
  const std::string name =
      derived_name(room.name() + " split " + std::to_string(number) + " " + std::to_string(mine.color));
  return meet_child(parent, child, name, faults, made);
}

ncclResult_t begin_split(ncclComm_t comm, Choice choice, ncclComm_t* made, const ncclConfig_t* config) {
  if (const auto result = check_comm(comm, "ncclCommSplit"); result != ncclSuccess) return result;
  if (made == nullptr || (choice.color < 0 && choice.color != kSplitNoColor)) return ncclInvalidArgument;
  if (const auto result = ensure_ready(comm); result != ncclSuccess) return result;
  *made = nullptr;
  ncclComm_t child = nullptr;
  if (choice.color != kSplitNoColor) {
    const bool share = !comm->revoked && comm->config.splitShare != 0;
    if (const auto result = make_child(comm, config, share, &child); result != ncclSuccess) return result;
  }
  const int number = ++comm->child_count;
  const auto work = [comm, child, choice, number, made, faults = take_faults("CommSplit", comm)] {
    return split(comm, child, choice, number, made, faults);
  };
  return add_job({.comm = comm, .work = work});
}

ncclResult_t begin_shrink(ncclComm_t comm, std::vector<int> excluded, ncclComm_t* made, const ncclConfig_t* config,
                          int flags) {
  if (made == nullptr || excluded.empty()) return ncclInvalidArgument;
  std::sort(excluded.begin(), excluded.end());
  // Ranks in the list must not call it.
  if (std::binary_search(excluded.begin(), excluded.end(), comm->rank)) return ncclInvalidArgument;
  if (const auto result = ensure_ready(comm); result != ncclSuccess) return result;
  *made = nullptr;
  ncclComm_t child = nullptr;
  const bool share = !comm->revoked && (flags & kShrinkAbort) == 0 && comm->config.shrinkShare != 0;
  if (const auto result = make_child(comm, config, share, &child); result != ncclSuccess) return result;
  std::string list;
  int before = 0;  // dense, in the old order
  for (const int rank : excluded) {
    list += std::to_string(rank) + " ";
    if (rank < comm->rank) ++before;
  }
  child->rank = comm->rank - before;
  child->size = comm->size - static_cast<int>(excluded.size());
  const std::string name = derived_name(comm->room->name() + " shrink " + list + std::to_string(comm->shrinks[list]++));
  const auto work = [comm, child, name, made, faults = take_faults("CommShrink", comm)] {
    return meet_child(comm, child, name, faults, made);
  };
  return add_job({.comm = comm, .work = work});
}

/// The id that the root announced for this growth: only two ranks of NCCL need it, here all.
ncclResult_t grow(ncclComm_t comm, ncclComm_t grown, const std::vector<Fault>& faults, std::string name) {
  if (comm != nullptr && name.empty()) {
    Room& room = *comm->room;
    const std::uint64_t number = ++comm->grown;
    const Stop stop = [comm, grown] { return *comm->abort_flag || *grown->abort_flag; };
    if (!wait_until([&] { return room.grow_number() >= number; }, stop)) return ncclInternalError;
    ncclUniqueId id{};
    std::memcpy(&id, room.grow_id(), sizeof id);
    name = room_of(&id, 1);
  }
  if (name.empty()) return ncclSystemError;
  return meet(grown, name, nullptr, faults);
}

/// Ends the group that the call began. As in NCCL (init.cc: NCCLCHECK(ncclGroupEndInternal())), what is only begun is a
/// success, and the communicator itself tells that it is in progress.
ncclResult_t finish(ncclResult_t result) {
  note_group_error(result);
  const ncclResult_t ended = group_end();
  return result == ncclSuccess && ended != ncclInProgress ? ended : result;
}

}  // namespace

FAKE_NCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child,
                                            ncclConfig_t* config) {
  group_start();
  return finish(begin_split(comm, {.color = color, .key = key}, child, config));
}

/// init.cc:3177: with NCCL_SHRINK_ABORT the caller waits until the device has nothing left to do.
FAKE_NCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child,
                                             ncclConfig_t* config, int flags) {
  if (const auto result = check_comm(comm, "ncclCommShrink"); result != ncclSuccess) return result;
  group_start();
  if ((flags & kShrinkAbort) != 0) {
    *comm->abort_flag = true;
    wait_until([&] { return comm->order.idle(); }, [] { return false; });
    *comm->abort_flag = false;
  }
  if (excluded == nullptr || excluded_count <= 0) return finish(ncclInvalidArgument);
  return finish(begin_shrink(comm, std::vector<int>(excluded, excluded + excluded_count), child, config, flags));
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  if (const auto result = check_comm(comm, "ncclCommGetUniqueId"); result != ncclSuccess) return result;
  if (const auto result = ensure_ready(comm); result != ncclSuccess) return result;
  if (!make_unique_id(id)) return ncclInvalidArgument;
  std::memcpy(comm->room->grow_id(), id, sizeof *id);
  comm->room->grow_number() += 1;
  return ncclSuccess;
}

FAKE_NCCL_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int size, const ncclUniqueId* id, int rank,
                                           ncclComm_t* grown, ncclConfig_t* config) {
  if (grown == nullptr || size <= 0 || (comm != nullptr && size <= comm->size)) return ncclInvalidArgument;
  *grown = nullptr;
  group_start();
  if (comm != nullptr) {
    if (const auto result = check_comm(comm, "ncclCommGrow"); result != ncclSuccess) return finish(result);
    if (const auto result = ensure_ready(comm); result != ncclSuccess) return finish(result);
    if (rank != -1) return finish(ncclInvalidArgument);
  } else if (rank < 0 || rank >= size || id == nullptr) {
    return finish(ncclInvalidArgument);
  }
  ncclComm_t made = make_comm();
  made->rank = comm == nullptr ? rank : comm->rank;
  made->size = size;
  made->place = comm == nullptr ? current_place() : comm->place;
  if (comm != nullptr && config == nullptr) {
    made->config = comm->config;
    made->name = comm->name;
  } else if (const auto result = parse_config(made, config); result != ncclSuccess) {
    made->alive = false;
    return finish(result);
  }
  if (comm != nullptr && id != nullptr) ++comm->grown;
  *grown = made;
  const std::string name = id == nullptr ? "" : room_of(id, 1);
  const auto work = [comm, made, name, faults = take_faults("CommGrow", made)] {
    return grow(comm, made, faults, name);
  };
  return finish(add_job({.comm = made, .work = work}));
}

// What communicates nothing: version, names, ranks, users' reductions.

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
    names += comm->name + "\n";
  }
  return names.c_str();
}
