#include "collectives/shm/endpoint.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>

#include <fmt/format.h>

#include "base/errors.hpp"
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

}  // namespace ddp::collectives::shm
