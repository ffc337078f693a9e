#include "store_server/connection.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace ddp::store_server {
namespace {

/// Capacity that an empty outbox keeps.
constexpr std::size_t kKeptOutboxBytes = std::size_t{64} * 1024;

}  // namespace

bool Connection::send_some() noexcept {
  while (unread() > 0) {
    const ssize_t count = ::send(fd.get(), outbox.data() + sent, unread(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
      moved = Clock::now();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (sent > outbox.size() / 2) {
        outbox.erase(0, sent);
        sent = 0;
      }
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  outbox.clear();
  sent = 0;
  // assigning an empty string would keep the memory
  if (outbox.capacity() > kKeptOutboxBytes) std::string{}.swap(outbox);
  return true;
}

bool is_established(int fd) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
}

}  // namespace ddp::store_server
