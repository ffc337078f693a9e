// Reads what another rank's process has in its memory, where the kernel allows that: so a large message is copied once,
// while its sender computes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {

class PeerMemory {
 public:
  PeerMemory(const RankControl& own, const RankControl& peer) : own_(&own), peer_(&peer) {}

  /// Whether @p bytes came from there, and were the message's until all were read. If not, what is in @p to is void:
  /// the kernel forbids it (ptrace scope, seccomp, other namespaces), or the rank has died or withdrawn its messages.
  bool read(void* to, std::uint64_t from, std::size_t bytes) const noexcept;

  /// For the rank itself: no other takes what it reads from now on.
  static void withdraw(RankControl& own) noexcept;

 private:
  const RankControl* own_;
  const RankControl* peer_;
};

}  // namespace ddp::collectives::shm
