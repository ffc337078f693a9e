// Collectives through the room's slots: each rank puts a piece of what it contributes into its slot, waits for all, and
// takes what it needs out of theirs.
#include <algorithm>
#include <cstring>

#include "launch.hpp"

namespace fake_nccl {
namespace {

const char* name_of(Function function) {
  switch (function) {
    case Function::all_reduce: return "AllReduce";
    case Function::reduce: return "Reduce";
    case Function::broadcast: return "Broadcast";
    case Function::all_gather: return "AllGather";
    case Function::reduce_scatter: return "ReduceScatter";
    case Function::send: return "Send";
    default: return "Recv";
  }
}

std::string describe(const CallRecord& call) {
  return std::string(name_of(static_cast<Function>(call.function))) + "(count " + std::to_string(call.count) +
         ", type " + std::to_string(call.type) + ", op " + std::to_string(call.op) + ", root " +
         std::to_string(call.root) + ")";
}

/// A collective as it goes on, on one rank.
class Collective {
 public:
  Collective(ncclComm_t comm, Room& room, const Task& task, PeerWatch& watch)
      : comm_(comm), room_(room), task_(task), watch_(watch), element_(size_of(task.type)) {}

  bool run() {
    const std::size_t piece = kSlotBytes / element_ * element_;
    const std::size_t total = task_.count * element_ * (task_.function == Function::reduce_scatter ? ranks() : 1);
    bool first = true;
    for (std::size_t at = 0; at < total; at += piece) {
      if (!round(at, std::min(piece, total - at), first)) return false;
      first = false;
    }
    return true;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(room_.size()); }

  /// Waits until all have come to @p step.
  bool reached(std::uint64_t step) {
    return wait_until(
        [&] {
          for (int rank = 0; rank < room_.size(); ++rank) {
            if (room_.place(rank).step < step) return false;
          }
          return true;
        },
        [&] { return watch_.stopped(); });
  }

  bool round(std::size_t at, std::size_t bytes, bool first) {
    RankPlace& mine = room_.place(comm_->rank);
    const std::uint64_t step = mine.step;
    if (!reached(step)) return false;
    contribute(at, bytes);
    if (first) mine.call = record();
    mine.step = step + 1;
    if (!reached(step + 1)) return false;
    if (first && !matches(mine.call)) return false;
    take(at, bytes);
    mine.step = step + 2;
    return true;
  }

  CallRecord record() const {
    // A user's operation has another number on each rank.
    const std::uint32_t op = std::min<std::uint32_t>(task_.op, ncclNumOps);
    return {.function = static_cast<std::uint32_t>(task_.function),
            .type = static_cast<std::uint32_t>(task_.type),
            .op = op,
            .root = task_.root,
            .count = task_.count};
  }

  /// NCCL matches by the order of launches only; other arguments on another rank hang or corrupt data
  /// (enqueue.cc:3143: only its global check mode compares).
  bool matches(const CallRecord& mine) {
    for (int rank = 0; rank < room_.size(); ++rank) {
      const CallRecord& other = room_.place(rank).call;
      if (other == mine) continue;
      mismatch(comm_, watch_, describe(mine) + ", but rank " + std::to_string(rank) + " " + describe(other));
      return false;
    }
    return true;
  }

  void contribute(std::size_t at, std::size_t bytes) {
    if (task_.function == Function::broadcast && comm_->rank != task_.root) return;
    std::byte* slot = room_.slot(comm_->rank);
    std::memcpy(slot, static_cast<const std::byte*>(task_.send) + at, bytes);
    if (task_.reduction.kind == Reduction::Kind::scaled_sum) scale(task_.reduction, task_.type, slot, bytes / element_);
  }

  void take(std::size_t at, std::size_t bytes) {
    auto* to = static_cast<std::byte*>(task_.receive);
    const std::size_t part = task_.count * element_;
    switch (task_.function) {
      case Function::broadcast: std::memcpy(to + at, room_.slot(task_.root), bytes); return;
      case Function::all_gather:
        for (int rank = 0; rank < room_.size(); ++rank) {
          std::memcpy(to + static_cast<std::size_t>(rank) * part + at, room_.slot(rank), bytes);
        }
        return;
      case Function::reduce:
        if (comm_->rank == task_.root) reduce_into(to + at, 0, bytes);
        return;
      case Function::reduce_scatter: {
        const std::size_t mine = static_cast<std::size_t>(comm_->rank) * part;
        const std::size_t begin = std::max(at, mine);
        const std::size_t end = std::min(at + bytes, mine + part);
        if (begin < end) reduce_into(to + (begin - mine), begin - at, end - begin);
        return;
      }
      default: reduce_into(to + at, 0, bytes);
    }
  }

  void reduce_into(std::byte* to, std::size_t offset, std::size_t bytes) {
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < room_.size(); ++rank) inputs.push_back(room_.slot(rank) + offset);
    fake_nccl::reduce(task_.reduction, task_.type, inputs, to, bytes / element_);
  }

  ncclComm_t comm_;
  Room& room_;
  const Task& task_;
  PeerWatch& watch_;
  std::size_t element_;
};

}  // namespace

bool touch_buffers(ncclComm_t comm, const Task& task) {
  const std::size_t part = task.count * size_of(task.type);
  const std::size_t all = part * static_cast<std::size_t>(comm->size);
  const bool root = comm->rank == task.root;
  switch (task.function) {
    case Function::send: return touch(task.send, part);
    case Function::receive: return touch(task.receive, part);
    case Function::broadcast: return (!root || touch(task.send, part)) && touch(task.receive, part);
    case Function::reduce: return touch(task.send, part) && (!root || touch(task.receive, part));
    case Function::all_gather: return touch(task.send, part) && touch(task.receive, all);
    case Function::reduce_scatter: return touch(task.send, all) && touch(task.receive, part);
    default: return touch(task.send, part) && touch(task.receive, part);
  }
}

bool run_collective(ncclComm_t comm, Room& room, const Task& task, PeerWatch& watch) {
  return Collective(comm, room, task, watch).run();
}

}  // namespace fake_nccl
