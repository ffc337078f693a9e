#include "collectives/shm/peer_transfers.hpp"

#include <algorithm>

namespace ddp::collectives::shm {
namespace {

constexpr std::size_t kEagerBytes = 8 * 1024;
/// What one rank keeps for another at most, of messages whose receives are not posted.
constexpr std::size_t kKeptBytes = 64 * 1024;
constexpr std::size_t kTransferBytes = 256 * 1024;
/// Read from another rank's memory at once: some 100 us.
constexpr std::size_t kReadBytes = 512 * 1024;

std::size_t bytes_of(const Operation& operation) { return operation.count * size_of(operation.dtype); }
/// What a message takes at the receiver, so that many empty ones are limited, too.
std::size_t kept_bytes(std::size_t bytes) { return bytes + sizeof(RecordHeader); }

}  // namespace

PeerTransfers::PeerTransfers(const SegmentView& view, int rank, int peer, std::uint64_t first, Doorbell& bell,
                             bool reads)
    : in_(view, peer, rank, first),
      out_(view, rank, peer, first),
      bell_(bell),
      memory_(view.control(rank), view.control(peer)),
      reads_(reads) {}

void PeerTransfers::post(const Operation& operation, std::size_t& unfinished) {
  if (!queues_) queues_ = std::make_unique<Queues>();
  ++posted_;
  const Transfer transfer{&operation, &unfinished};
  if (operation.kind == OperationKind::send) {
    queues_->to_send.push_back(transfer);
    return;
  }
  const auto arrival = std::find_if(queues_->arrivals.begin(), queues_->arrivals.end(),
                                    [&](const Arrival& one) { return one.header.tag == operation.tag; });
  if (arrival == queues_->arrivals.end()) {
    queues_->to_receive.push_back(transfer);
    return;
  }
  if (arrival->header.kind == RecordKind::eager && arrival->header.fingerprint == operation.fingerprint()) {
    if (!arrival->data.empty()) std::memcpy(operation.output.data(), arrival->data.data(), arrival->data.size());
    in_.take(kept_bytes(arrival->header.bytes));
    bell_.changed();
    finish(transfer);
  } else {
    match(transfer, arrival->header, arrival->from);
  }
  queues_->arrivals.erase(arrival);
}

void PeerTransfers::finish(const Transfer& transfer) {
  --*transfer.unfinished;
  --posted_;
}

bool PeerTransfers::advance() {
  const bool received = take_records();
  const bool read = read_messages();
  const bool sent = send_records();
  return received || read || sent;
}

bool PeerTransfers::take_records() {
  RecordHeader header{};
  std::size_t bytes = 0;
  while (bytes < kTransferBytes && !mismatch_ && in_.next(header)) {
    take(header);
    in_.release();
    bell_.changed();
    bytes += header.bytes + sizeof header;
  }
  return bytes != 0;
}

void PeerTransfers::take(const RecordHeader& header) {
  const auto of_this_id = [&](const Transfer& transfer) { return transfer.id == header.id; };
  switch (header.kind) {
    case RecordKind::taken:
    case RecordKind::request: {
      const auto found = std::find_if(queues_->announced.begin(), queues_->announced.end(), of_this_id);
      if (found == queues_->announced.end()) return;
      if (header.kind == RecordKind::taken) {
        finish(*found);
      } else {
        queues_->asked_for.push_back(*found);
      }
      queues_->announced.erase(found);
      return;
    }
    case RecordKind::piece: {
      const auto found = std::find_if(queues_->receiving.begin(), queues_->receiving.end(), of_this_id);
      if (found == queues_->receiving.end() || header.bytes > bytes_of(*found->operation) - found->moved) {
        mismatch_ = true;  // no rank of this group sends it
        return;
      }
      in_.read(static_cast<std::byte*>(found->operation->output.data()) + found->moved, header.bytes);
      found->moved += header.bytes;
      if (found->moved < bytes_of(*found->operation)) return;
      finish(*found);
      queues_->receiving.erase(found);
      return;
    }
    case RecordKind::eager:
    case RecordKind::announce: break;
  }
  std::uint64_t from = 0;
  if (header.kind == RecordKind::announce) in_.read(&from, sizeof from);
  const auto receive = std::find_if(queues_->to_receive.begin(), queues_->to_receive.end(),
                                    [&](const Transfer& transfer) { return transfer.operation->tag == header.tag; });
  if (receive != queues_->to_receive.end()) {
    const Transfer matched = *receive;
    queues_->to_receive.erase(receive);
    return match(matched, header, from);
  }
  Arrival arrival{header, from};
  if (header.kind == RecordKind::eager) {
    arrival.data.resize(header.bytes);
    in_.read(arrival.data.data(), header.bytes);
  }
  queues_->arrivals.push_back(std::move(arrival));
}

void PeerTransfers::match(Transfer receive, const RecordHeader& header, std::uint64_t from) {
  if (header.fingerprint != receive.operation->fingerprint()) return refuse(*receive.operation, header);
  if (header.kind == RecordKind::eager) {
    in_.read(receive.operation->output.data(), header.bytes);
    in_.take(kept_bytes(header.bytes));
    return finish(receive);
  }
  receive.id = header.id;
  receive.from = from;
  queues_->reading.push_back(receive);
}

/// The sender's memory is its own again once it knows that a message was taken.
bool PeerTransfers::read_messages() {
  if (queues_->reading.empty()) return false;
  if (!reads_) {
    ask_instead();
    return true;
  }
  Transfer& receive = queues_->reading.front();
  const std::size_t left = bytes_of(*receive.operation) - receive.moved;
  if (left != 0) {
    const std::size_t part = std::min(left, kReadBytes);
    auto* const to = static_cast<std::byte*>(receive.operation->output.data()) + receive.moved;
    reads_ = memory_.read(to, receive.from + receive.moved, part);
    if (!reads_) return true;
    receive.moved += part;
    if (part < left) return true;
  }
  if (out_.room() == 0) return left != 0;
  out_.put({.kind = RecordKind::taken, .tag = 0, .fingerprint = 0, .bytes = 0, .id = receive.id}, nullptr, 0);
  bell_.changed();
  finish(receive);
  queues_->reading.pop_front();
  return true;
}

void PeerTransfers::ask_instead() {
  for (Transfer& receive : queues_->reading) {
    receive.moved = 0;
    queues_->to_ask.push_back(receive.id);
    queues_->receiving.push_back(receive);
  }
  queues_->reading.clear();
}

void PeerTransfers::refuse(const Operation& receive, const RecordHeader& header) {
  mismatch_ = true;
  const std::size_t count = header.bytes / std::max<std::size_t>(size_of(header.dtype), 1);
  // those of a collective are the backend's own, and other ranks know the call
  if (receive.sequence != 0 || (header.dtype == receive.dtype && count == receive.count)) return;
  unfit_ = {.receive = receive, .sent = header.dtype, .count = count};
  unfit_->receive.keep_alive.reset();
}

bool PeerTransfers::waits(const Operation& operation) const {
  const auto has = [&](const std::deque<Transfer>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Transfer& one) { return one.operation == &operation; });
  };
  return queues_ && (has(queues_->to_receive) || has(queues_->reading) || has(queues_->receiving) ||
                     has(queues_->to_send) || has(queues_->announced) || has(queues_->asked_for));
}

bool PeerTransfers::send_records() {
  bool moved = false;
  const auto put = [&](const RecordHeader& header, const std::byte* data, std::size_t bytes) {
    out_.put(header, data, bytes);
    bell_.changed();
    moved = true;
  };
  while (!queues_->to_ask.empty() && out_.room() != 0) {
    put({.kind = RecordKind::request, .tag = 0, .fingerprint = 0, .bytes = 0, .id = queues_->to_ask.front()}, nullptr,
        0);
    queues_->to_ask.pop_front();
  }
  while (!queues_->to_send.empty()) {
    Transfer& send = queues_->to_send.front();
    const std::size_t bytes = bytes_of(*send.operation);
    const std::size_t room = out_.room();
    RecordHeader header{.kind = RecordKind::eager,
                        .dtype = send.operation->dtype,
                        .tag = send.operation->tag,
                        .fingerprint = send.operation->fingerprint(),
                        .bytes = bytes,
                        .id = 0};
    if (bytes <= std::min(kEagerBytes, out_.size() / 4) &&
        eager_sent_ + kept_bytes(bytes) - out_.taken() <= kKeptBytes) {
      if (room == 0 || room < bytes) break;
      put(header, static_cast<const std::byte*>(send.operation->input.data()), bytes);
      eager_sent_ += kept_bytes(bytes);
      finish(send);
    } else {
      if (room == 0) break;
      send.id = header.id = ++next_id_;
      header.kind = RecordKind::announce;
      const auto from = reinterpret_cast<std::uintptr_t>(send.operation->input.data());
      put(header, reinterpret_cast<const std::byte*>(&from), sizeof from);
      queues_->announced.push_back(send);
    }
    queues_->to_send.pop_front();
  }
  return send_pieces() || moved;
}

bool PeerTransfers::send_pieces() {
  std::size_t sent = 0;
  while (!queues_->asked_for.empty() && sent < kTransferBytes) {
    Transfer& send = queues_->asked_for.front();
    const std::size_t left = bytes_of(*send.operation) - send.moved;
    const std::size_t room = out_.room();
    if (room == 0) break;
    const std::size_t piece = std::min({left, room, out_.size() / 4});
    const auto* const from = static_cast<const std::byte*>(send.operation->input.data()) + send.moved;
    out_.put({.kind = RecordKind::piece, .tag = 0, .fingerprint = 0, .bytes = piece, .id = send.id}, from, piece);
    bell_.changed();
    send.moved += piece;
    sent += piece;
    if (send.moved < bytes_of(*send.operation)) continue;
    finish(send);
    queues_->asked_for.pop_front();
  }
  return sent != 0;
}

}  // namespace ddp::collectives::shm
