#include "pmix_server/accept_guard.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"

namespace ddp::launcher {
namespace {

std::atomic<bool> guarded{false};

/// Not of a client that has closed already. In a user namespace that does not know this process's user, nobody's
/// connections can be told apart.
bool is_ours(int connection) {
  using store_server::Endpoint;
  using Kind = store_server::SocketOwner::Kind;
  thread_local store_server::SocketOwners owners;
  const auto own = Endpoint::own(connection);
  const auto other = Endpoint::other(connection);
  if (!own || !other) return false;
  const Kind kind = owners.owner_of(*other, *own).kind;
  return kind == Kind::ours || kind == Kind::unknowable;
}

}  // namespace

void guard_accept() { guarded = true; }

}  // namespace ddp::launcher

/// In a program, this definition takes precedence over the C library's for all libraries. The listening sockets of
/// libpmix do not block, so the end of the queue is EAGAIN, which it expects.
extern "C" __attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* length) {
  for (;;) {
    const int connection = ::accept4(fd, address, length, 0);
    if (connection < 0 || !ddp::launcher::guarded || ddp::launcher::is_ours(connection)) return connection;
    ::close(connection);
  }
}
