// Sends and receives of a group, all at the same time: through a mailbox for each pair of ranks, piece by piece.
#include <algorithm>
#include <cstring>
#include <set>

#include "launch.hpp"

namespace fake_nccl {
namespace {

/// One send or receive as it goes on.
struct Transfer {
  const Task* task;
  std::size_t bytes;
  std::size_t at = 0;
  bool begun = false;
  bool over() const { return begun && at == bytes; }
};

enum class Progress { none, some, failed };

Progress send_piece(Transfer& transfer, Mailbox& box) {
  if (box.read != box.written) return Progress::none;
  const std::size_t bytes = std::min(kMailboxBytes, transfer.bytes - transfer.at);
  box.message_bytes = transfer.bytes;
  box.type = static_cast<std::uint32_t>(transfer.task->type);
  box.piece_bytes = static_cast<std::uint32_t>(bytes);
  if (bytes != 0) std::memcpy(box.data, static_cast<const std::byte*>(transfer.task->send) + transfer.at, bytes);
  transfer.at += bytes;
  transfer.begun = true;
  box.written += 1;
  return Progress::some;
}

Progress receive_piece(Transfer& transfer, Mailbox& box) {
  if (box.read == box.written) return Progress::none;
  if (box.message_bytes != transfer.bytes) return Progress::failed;
  if (box.piece_bytes != 0) {
    std::memcpy(static_cast<std::byte*>(transfer.task->receive) + transfer.at, box.data, box.piece_bytes);
  }
  transfer.at += box.piece_bytes;
  transfer.begun = true;
  box.read += 1;
  return Progress::some;
}

}  // namespace

bool run_transfers(ncclComm_t comm, Room& room, const std::vector<const Task*>& tasks, PeerWatch& watch) {
  std::vector<Transfer> transfers;
  transfers.reserve(tasks.size());
  for (const Task* task : tasks) transfers.push_back({.task = task, .bytes = task->count * size_of(task->type)});
  // One step of all; with one peer and direction, in the order of calls.
  const auto turn = [&](bool& over, bool& failed) {
    bool moved = false;
    over = true;
    std::set<std::pair<Function, int>> busy;
    for (Transfer& transfer : transfers) {
      if (transfer.over()) continue;
      over = false;
      const int peer = transfer.task->root;
      if (!busy.emplace(transfer.task->function, peer).second) continue;
      const bool sends = transfer.task->function == Function::send;
      Mailbox& box = sends ? room.mailbox(comm->rank, peer) : room.mailbox(peer, comm->rank);
      const Progress progress = sends ? send_piece(transfer, box) : receive_piece(transfer, box);
      moved = moved || progress == Progress::some;
      if (progress != Progress::failed) continue;
      failed = true;
      return mismatch(comm, watch,
                      "Recv of " + std::to_string(transfer.bytes) + " bytes, but rank " + std::to_string(peer) +
                          " sends " + std::to_string(box.message_bytes));
    }
    return moved;
  };
  bool over = false;
  bool failed = false;
  const bool ended = wait_until(
      [&] {
        while (turn(over, failed) && !watch.stopped()) {
        }
        return over || failed;
      },
      [&] { return watch.stopped(); });
  return ended && !failed;
}

}  // namespace fake_nccl
