#include "collectives/shm/endpoint.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/message.hpp"
#include "collectives/shm/shared_segment.hpp"

namespace ddp::collectives::shm {
namespace {

constexpr auto kListening = "listening for ranks to share memory with";

void fill(Secret& secret) {
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    throw base::system_error(kListening, errno);
  }
}

/// "3b241101-e2bb-4255-8caf-4136c566a962", the dashes left out, as bytes.
Secret read_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string digits;
  for (char digit = 0; file.get(digit);) {
    if (std::isxdigit(static_cast<unsigned char>(digit)) != 0) digits += digit;
  }
  if (digits.size() != 32) throw base::system_error("reading /proc/sys/kernel/random/boot_id", ENOENT);
  Secret id{};
  for (std::size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<std::byte>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

/// Abstract: no file that could stay behind, the same in every mount namespace.
socklen_t fill(sockaddr_un& address, const Secret& name) {
  address.sun_family = AF_UNIX;
  std::string text = "ddp-shm-";
  for (const std::byte byte : name) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  text.copy(address.sun_path + 1, text.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

base::UniqueFd make_socket() {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd)
    throw base::system_error(kListening, errno, errno == EMFILE ? "raise the limit of open files (ulimit -n)" : "");
  return fd;
}

}  // namespace

Endpoint::Endpoint() {
  try {
    address_.refusal = why_no_segments();
    address_.boot_id = read_boot_id();
    struct stat status {};
    if (::stat("/proc/self/ns/net", &status) != 0) throw base::system_error("reading /proc/self/ns/net", errno);
    address_.network_namespace = status.st_ino;
    address_.user = ::geteuid();
    fill(address_.name);
    fill(address_.token);
    fill(address_.proof);
    sockaddr_un name{};
    const socklen_t size = fill(name, address_.name);
    listener_ = base::UnsharedFd{make_socket()};
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), size) != 0 ||
        ::listen(listener_.get(), SOMAXCONN) != 0) {
      throw base::system_error(kListening, errno);
    }
  } catch (const Error& error) {
    listener_.reset();
    address_.refusal = error.what();
  }
}

base::UniqueFd connect_to(const EndpointAddress& address) {
  sockaddr_un name{};
  const socklen_t size = fill(name, address.name);
  base::UniqueFd fd = make_socket();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), size) == 0) return fd;
  if (errno == EAGAIN || errno == EINTR) return {};
  if (errno != ECONNREFUSED) throw base::system_error("connecting to the leader of a group", errno);
  throw Error{{.code = ErrorCode::peer_lost,
               .attempted = "connecting to the leader of a group",
               .cause = "its socket is closed",
               .native = base::errno_name(errno),
               .ranks = {0},
               .hint = "the process has ended or given up; its own messages say why"}};
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

std::string why_not_shared(const EndpointAddress& a, const EndpointAddress& b) {
  if (!a.refusal.empty()) return a.refusal;
  if (!b.refusal.empty()) return b.refusal;
  if (a.boot_id != b.boot_id) return "they run on different hosts";
  if (a.network_namespace != b.network_namespace) return "they are in different network namespaces of one host";
  if (a.user != b.user) return fmt::format("they run as different users, {} and {}", a.user, b.user);
  return {};
}

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
