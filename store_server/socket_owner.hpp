// Which user owns the other end of a connection within this host: the kernel knows, and the client cannot lie.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "store_server/peer_address.hpp"

namespace ddp::store_server {

/// What this host can say about one end of a TCP connection.
struct SocketOwner {
  enum class Kind {
    ours,        ///< the user of this process
    other_user,  ///< uid
    none,        ///< no process of this network namespace has it; it may have been closed
    unknowable,  ///< this process's user has no id of its own in its user namespace
  };
  Kind kind = Kind::none;
  uid_t uid = 0;  ///< of ours and other_user

  /// Why it is not ours: "it belongs to uid 1003, not ...".
  std::string reason() const;
};

/// Asks sock_diag(7), in about 5 µs; where that does not exist, /proc/net/tcp. Not thread-safe.
class SocketOwners {
 public:
  /// @param ask_kernel false: /proc/net/tcp only, for tests
  explicit SocketOwners(bool ask_kernel = true);

  /// Only of an established connection that a process holds: the kernel gives a socket that was closed, but still has
  /// bytes to send, to root.
  SocketOwner owner_of(const Endpoint& own, const Endpoint& other);

 private:
  /// @param absent set where the kernel says that there is no such connection; else it did not say
  std::optional<uid_t> ask_kernel(const Endpoint& own, const Endpoint& other, bool& absent);

  base::UniqueFd netlink_;
  std::uint32_t sequence_ = 0;
  bool works_ = false;  ///< sock_diag has found a socket: what it says is absent is not there
  bool knowable_;
};

}  // namespace ddp::store_server
