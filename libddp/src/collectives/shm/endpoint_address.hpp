// What a rank says about itself so that others can share memory with it: where and when they can, how they reach its
// socket, and what they prove to it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <ddp/bytes.hpp>

namespace ddp::collectives::shm {

using Secret = std::array<std::byte, 16>;

struct EndpointAddress {
  Secret boot_id{};                     ///< of the running kernel
  std::uint64_t network_namespace = 0;  ///< inode: abstract sockets are reached within one only
  std::uint32_t user = 0;               ///< effective uid
  Secret name{};                        ///< of the socket, in the abstract namespace
  Secret token{};                       ///< proves to the leader that somebody belongs to the group
  Secret proof{};                       ///< proves the leader to the others
  std::string refusal;  ///< why this rank cannot share memory at all; empty if it can; at most 200 bytes

  Bytes pack() const;
  /// Throws Error(protocol) for bytes that are no address.
  static EndpointAddress parse(const Bytes& bytes);
};

/// Why ranks with these addresses cannot share memory; empty if they can.
std::string why_not_shared(const EndpointAddress& a, const EndpointAddress& b);

}  // namespace ddp::collectives::shm
