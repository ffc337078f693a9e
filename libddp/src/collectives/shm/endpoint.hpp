// A rank's socket for those with whom it may share memory. It exists before any of them is known.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/message_fields.hpp"
#include "base/unique_fd.hpp"

namespace ddp::collectives::shm {

// ---- What a rank says about itself so that others can share memory with it: where and when they can, how they reach
// its socket, and what they prove to it.

using Secret = std::array<std::byte, 16>;

struct EndpointAddress {
  Secret boot_id{};                     ///< of the running kernel
  std::uint64_t network_namespace = 0;  ///< inode: abstract sockets are reached within one only
  std::uint32_t user = 0;               ///< effective uid
  Secret name{};                        ///< of the socket, in the abstract namespace
  Secret token{};                       ///< proves to the leader that somebody belongs to the group
  Secret proof{};                       ///< proves the leader to the others
  std::string refusal;                  ///< why this rank cannot share memory at all; empty if it can,
                                        ///< truncated to 200 bytes when it is sent
};
constexpr auto description(const EndpointAddress*) {
  using T = EndpointAddress;
  return base::describe({"rank's address for shared memory", 2},
                        base::fields<&T::boot_id, &T::network_namespace, &T::user, &T::name, &T::token, &T::proof>(),
                        base::fields<&T::refusal>(base::Rule{.longest = 200, .cut = true}));
}

/// Why ranks with these addresses cannot share memory; empty if they can.
std::string why_not_shared(const EndpointAddress& a, const EndpointAddress& b);

class Endpoint {
 public:
  /// Listens; what prevents it becomes the address's refusal.
  Endpoint();

  const EndpointAddress& address() const { return address_; }
  /// -1 if this rank cannot share memory.
  int listener() const { return listener_.get(); }
  void stop_listening() { listener_.reset(); }

 private:
  EndpointAddress address_;
  base::UnsharedFd listener_;
};

/// A connection to the rank with this address, not blocking; none if there is no room in its queue now. Throws Error:
/// peer_lost if nobody listens there, system.
base::UniqueFd connect_to(const EndpointAddress& address);

/// Whether the process at the other end belongs to this process's user.
bool same_user(int socket);

}  // namespace ddp::collectives::shm
