#include "multiproc/broken_send.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

namespace ddp::collectives::testing {

std::function<void()> after_half_a_message;

namespace {

// More than any message that carries no values.
constexpr std::size_t kLeastBytes = 4096;

ssize_t send_half(int socket, const msghdr& message, int flags, std::size_t bytes) {
  std::vector<iovec> parts;
  std::size_t left = bytes / 2;
  for (std::size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    parts.push_back(message.msg_iov[i]);
    parts.back().iov_len = std::min(parts.back().iov_len, left);
    left -= parts.back().iov_len;
  }
  msghdr half = message;
  half.msg_iov = parts.data();
  half.msg_iovlen = parts.size();
  const ssize_t sent = ::syscall(SYS_sendmsg, socket, &half, flags);
  if (sent > 0) after_half_a_message();
  return sent;
}

}  // namespace
}  // namespace ddp::collectives::testing

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using namespace ddp::collectives::testing;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) bytes += message->msg_iov[i].iov_len;
  if (after_half_a_message && bytes >= kLeastBytes) return send_half(socket, *message, flags, bytes);
  return ::syscall(SYS_sendmsg, socket, message, flags);
}
