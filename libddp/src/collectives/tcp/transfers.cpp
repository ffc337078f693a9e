#include "collectives/tcp/transfers.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "collectives/tcp/mesh.hpp"

namespace ddp::collectives::tcp {
namespace {

// Even empty messages take memory.
constexpr std::size_t kEagerOverheadBytes = 64;

constexpr std::size_t kWindowBytes = std::size_t{512} << 10U;
constexpr std::size_t kLeastWindowBytes = std::size_t{16} << 10U;
constexpr std::size_t kAllWindowsBytes = std::size_t{64} << 20U;

/// Removes the element with that number from a list.
Transfer* take(std::vector<Transfer*>& list, std::uint64_t number) {
  const auto found =
      std::find_if(list.begin(), list.end(), [number](const Transfer* one) { return one->number == number; });
  if (found == list.end()) return nullptr;
  Transfer* const transfer = *found;
  list.erase(found);
  return transfer;
}

}  // namespace

std::size_t eager_window_bytes(int size) noexcept {
  const auto peers = static_cast<std::size_t>(std::max(size - 1, 1));
  return std::clamp(kAllWindowsBytes / peers, kLeastWindowBytes, kWindowBytes);
}

Transfers::Transfers(TcpMesh& mesh, std::uint16_t context)
    : mesh_(&mesh),
      context_(context),
      window_bytes_(eager_window_bytes(mesh.size())),
      peers_(static_cast<std::size_t>(mesh.size())) {}

Transfers::Peer& Transfers::peer(int rank) {
  auto& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer) {
    peer = std::make_unique<Peer>();
    peer->last_number = mesh_->first_ordinal();
  }
  return *peer;
}

void Transfers::post(Transfer& transfer) {
  if (mesh_->failure()) return;
  if (!transfer.sends) {
    Link* const departed = mesh_->departed(transfer.peer);
    if (departed != nullptr && receive_from_departed(transfer, *departed)) return;
  }
  Link* const link = mesh_->link(transfer.peer);
  if (link == nullptr) return;
  transfer.sends ? post_send(transfer, *link) : post_receive(transfer, *link);
}

void Transfers::post_send(Transfer& transfer, Link& link) {
  Frame& frame = transfer.outgoing.frame;
  frame = {.kind = FrameKind::eager,
           .context = context_,
           .step = transfer.tag,
           .fingerprint = transfer.fingerprint,
           .total = transfer.bytes,
           .dtype = transfer.operation->dtype};
  transfer.outgoing.data = transfer.data;
  transfer.outgoing.bytes = transfer.bytes;
  transfer.outgoing.left = transfer.left;
  const std::size_t weight = transfer.bytes + kEagerOverheadBytes;
  if (transfer.bytes <= kEagerBytes && link.eager_in_flight + weight <= window_bytes_) {
    link.eager_in_flight += weight;
    return mesh_->send(transfer.peer, transfer.outgoing);
  }
  Peer& to = peer(transfer.peer);
  transfer.number = ++to.last_number;
  to.announced.push_back(&transfer);
  ++link.transfers_due;
  frame.kind = FrameKind::announce;
  frame.ordinal = transfer.number;
  link.enqueue_own(frame);
  link.flush();
}

void Transfers::post_receive(Transfer& transfer, Link& link) {
  Peer& from = peer(transfer.peer);
  ++link.transfers_due;
  const auto early = std::find_if(from.unexpected.begin(), from.unexpected.end(), [&](const Unexpected& one) {
    return one.taker == nullptr && one.frame.step == transfer.tag;
  });
  if (early == from.unexpected.end()) return from.receives.push_back(&transfer);
  if (!fits(transfer, early->frame, link)) return;
  if (early->frame.kind == FrameKind::announce) {
    grant(from, link, transfer, early->frame.ordinal);
  } else if (!early->complete) {
    early->taker = &transfer;
    return;
  } else {
    if (transfer.bytes != 0) std::memcpy(transfer.data, early->bytes.get(), transfer.bytes);
    finish(transfer, link);
    give_credit(link, transfer.bytes);
  }
  from.unexpected.erase(early);
}

bool Transfers::receive_from_departed(Transfer& transfer, Link& link) {
  Peer& from = peer(transfer.peer);
  const auto early = std::find_if(from.unexpected.begin(), from.unexpected.end(), [&](const Unexpected& one) {
    return one.complete && one.taker == nullptr && one.frame.step == transfer.tag;
  });
  if (early == from.unexpected.end()) return false;
  if (!fits(transfer, early->frame, link)) return true;
  if (transfer.bytes != 0) std::memcpy(transfer.data, early->bytes.get(), transfer.bytes);
  if (transfer.left != nullptr) --*transfer.left;
  from.unexpected.erase(early);
  return true;
}

bool Transfers::fits(const Transfer& transfer, const Frame& frame, Link& link) {
  if (transfer.fingerprint == frame.fingerprint && transfer.bytes == frame.total) return true;
  const Operation& receive = *transfer.operation;
  std::optional<UnfitMessage> message;
  const std::size_t count = frame.total / size_of(frame.dtype);
  // a collective's own messages come from the backend, and other ranks know the call
  if (receive.sequence == 0 && (frame.dtype != receive.dtype || count != receive.count)) {
    message = {.receive = receive, .sent = frame.dtype, .count = count};
    message->receive.keep_alive.reset();
  }
  mesh_->fail_mismatch(
      link.rank(),
      fmt::format("rank {} and rank {} have given messages of tag {} different element types or counts", mesh_->rank(),
                  link.rank(), transfer.tag),
      std::move(message));
  return false;
}

void Transfers::grant(Peer& from, Link& link, Transfer& transfer, std::uint64_t number) {
  transfer.number = number;
  transfer.received = 0;
  from.granted.push_back(&transfer);
  link.enqueue_own({.kind = FrameKind::grant, .context = context_, .ordinal = number});
  link.flush();
}

void Transfers::finish(Transfer& transfer, Link& link) {
  --link.transfers_due;
  if (transfer.left != nullptr) --*transfer.left;
}

void Transfers::give_credit(Link& link, std::size_t bytes) {
  link.give_credit(bytes + kEagerOverheadBytes);
  if (link.ungiven_credit() < credit_bytes(mesh_->size())) return;
  link.enqueue_own({.kind = FrameKind::credit});
  link.flush();
}

Transfer* Transfers::take_receive(Peer& from, std::uint32_t tag) {
  const auto found =
      std::find_if(from.receives.begin(), from.receives.end(), [tag](const Transfer* one) { return one->tag == tag; });
  if (found == from.receives.end()) return nullptr;
  Transfer* const transfer = *found;
  from.receives.erase(found);
  return transfer;
}

bool Transfers::waits(const Transfer& transfer) const {
  const auto& at = peers_[static_cast<std::size_t>(transfer.peer)];
  if (!at) return false;
  const auto is_in = [&](const auto& list) { return std::find(list.begin(), list.end(), &transfer) != list.end(); };
  const Outgoing& outgoing = transfer.outgoing;
  if (transfer.sends) return is_in(at->announced) || outgoing.header_left > 0 || outgoing.payload_left > 0;
  const auto takes = [&](const Unexpected& early) { return early.taker == &transfer; };
  return is_in(at->receives) || is_in(at->granted) || at->arriving == &transfer ||
         std::any_of(at->unexpected.begin(), at->unexpected.end(), takes);
}

Placement Transfers::place(Link& link, const Frame& frame) {
  Peer& other = peer(link.rank());
  switch (frame.kind) {
    case FrameKind::eager: return place_eager(other, link, frame);
    case FrameKind::announce: return place_announced(other, link, frame);
    case FrameKind::grant: return place_grant(other, link, frame);
    default: return place_data(other, link, frame);
  }
}

Placement Transfers::place_eager(Peer& from, Link& link, const Frame& frame) {
  from.arriving = take_receive(from, frame.step);
  from.arriving_early = nullptr;
  if (from.arriving != nullptr) {
    if (!fits(*from.arriving, frame, link)) return {.kind = Placement::Kind::refuse};
    return {.at = from.arriving->data};
  }
  if (frame.bytes > kEagerBytes) {
    mesh_->fail_mismatch(link.rank(), fmt::format("rank {} sent more at once than it may", link.rank()));
    return {.kind = Placement::Kind::refuse};
  }
  from.unexpected.push_back({.frame = frame});
  from.arriving_early = &from.unexpected.back();
  from.arriving_early->bytes = std::make_unique_for_overwrite<std::byte[]>(frame.bytes);
  return {.at = from.arriving_early->bytes.get()};
}

Placement Transfers::place_announced(Peer& from, Link& link, const Frame& frame) {
  Transfer* const transfer = take_receive(from, frame.step);
  if (transfer == nullptr) {
    from.unexpected.push_back({.frame = frame});
    return {};
  }
  if (!fits(*transfer, frame, link)) return {.kind = Placement::Kind::refuse};
  grant(from, link, *transfer, frame.ordinal);
  return {};
}

Placement Transfers::place_grant(Peer& to, Link& link, const Frame& frame) {
  Transfer* const transfer = take(to.announced, frame.ordinal);
  if (transfer == nullptr) {
    mesh_->fail_mismatch(link.rank(), fmt::format("rank {} granted a transfer that was not requested", link.rank()));
    return {.kind = Placement::Kind::refuse};
  }
  --link.transfers_due;
  transfer->outgoing.frame.kind = FrameKind::data;
  transfer->outgoing.frame.ordinal = frame.ordinal;
  mesh_->send(transfer->peer, transfer->outgoing);
  return {};
}

Placement Transfers::place_data(Peer& from, Link& link, const Frame& frame) {
  const auto found = std::find_if(from.granted.begin(), from.granted.end(),
                                  [&](const Transfer* one) { return one->number == frame.ordinal; });
  if (found == from.granted.end() || (*found)->bytes != frame.total ||
      frame.bytes > (*found)->bytes - (*found)->received) {
    mesh_->fail_mismatch(link.rank(), fmt::format("rank {} sent what was not granted", link.rank()));
    return {.kind = Placement::Kind::refuse};
  }
  from.arriving = *found;
  return {.at = from.arriving->data + from.arriving->received};
}

void Transfers::whole(Link& link, const Frame& frame) {
  Peer& from = peer(link.rank());
  if (frame.kind == FrameKind::data) {
    Transfer& transfer = *std::exchange(from.arriving, nullptr);
    transfer.received += frame.bytes;
    if (transfer.received != transfer.bytes) return;
    take(from.granted, transfer.number);
    return finish(transfer, link);
  }
  if (frame.kind != FrameKind::eager) return;
  if (Transfer* const transfer = std::exchange(from.arriving, nullptr)) {
    finish(*transfer, link);
    return give_credit(link, frame.bytes);
  }
  Unexpected& early = *std::exchange(from.arriving_early, nullptr);
  early.complete = true;
  if (early.taker == nullptr) return;
  if (frame.bytes != 0) std::memcpy(early.taker->data, early.bytes.get(), frame.bytes);
  finish(*early.taker, link);
  give_credit(link, frame.bytes);
  from.unexpected.remove_if([&early](const Unexpected& one) { return &one == &early; });
}

}  // namespace ddp::collectives::tcp
