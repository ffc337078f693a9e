#include "collectives/shm/join_socket.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/message.hpp"

namespace ddp::collectives::shm {

bool send(int socket, const JoinMessage& message, int file) {
  Bytes bytes = base::encode(message);
  iovec data{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof file)> control{};
  if (file >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof file);
    std::memcpy(CMSG_DATA(rights), &file, sizeof file);
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

Received receive(int socket, JoinMessage& message, base::UniqueFd* file) {
  std::array<std::byte, kMostJoinBytes + 1> bytes;
  iovec data{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  if (file != nullptr) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  ssize_t size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  // For a side that has closed without reading everything, Linux reports the reset before what it had sent.
  if (size < 0 && errno == ECONNRESET) size = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR ? Received::nothing : Received::closed;
  if (size == 0) return Received::closed;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr && file != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
    file->reset(fd);
  }
  try {
    message = base::decode<JoinMessage>(std::span{bytes}.first(static_cast<std::size_t>(size)));
  } catch (const Error&) {
    return Received::nonsense;
  }
  if (file != nullptr && message.kind == JoinMessage::Kind::offer && !*file) return Received::no_descriptor;
  return Received::message;
}

}  // namespace ddp::collectives::shm
