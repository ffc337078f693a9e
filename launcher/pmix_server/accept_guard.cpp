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

bool is_other_user(int connection) {
  using store_server::Endpoint;
  thread_local store_server::SocketOwners owners;
  const auto own = Endpoint::own(connection);
  const auto other = Endpoint::other(connection);
  return own && other && owners.owner_of(*other, *own).kind == store_server::SocketOwner::Kind::other_user;
}

}  // namespace

void guard_accept() { guarded = true; }

}  // namespace ddp::launcher

/// In a program, this definition takes precedence over the C library's for all libraries. The listening sockets of
/// libpmix do not block, so the end of the queue is EAGAIN, which it expects.
extern "C" __attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* length) {
  for (;;) {
    const int connection = ::accept4(fd, address, length, 0);
    if (connection < 0 || !ddp::launcher::guarded || !ddp::launcher::is_other_user(connection)) return connection;
    ::close(connection);
  }
}
