#include "collectives/shm/endpoint.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include <ddp/error.hpp>

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
    listener_ = make_socket();
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
               .hint = "the process has ended or given up; its own messages tell why"}};
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

namespace {

constexpr std::uint32_t kAddressMagic = 0x31'6d'68'73;  // "shm1"
constexpr std::size_t kLongestRefusal = 200;

template <class T>
void append(Bytes& bytes, const T& value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);  // all ranks concerned run on one host
}

template <class T>
bool take(const std::byte*& from, const std::byte* end, T& value) {
  if (static_cast<std::size_t>(end - from) < sizeof value) return false;
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return true;
}

}  // namespace

Bytes EndpointAddress::pack() const {
  Bytes bytes;
  append(bytes, kAddressMagic);
  append(bytes, boot_id);
  append(bytes, network_namespace);
  append(bytes, user);
  append(bytes, name);
  append(bytes, token);
  append(bytes, proof);
  const auto* const text = reinterpret_cast<const std::byte*>(refusal.data());
  bytes.insert(bytes.end(), text, text + std::min(refusal.size(), kLongestRefusal));
  return bytes;
}

EndpointAddress EndpointAddress::parse(const Bytes& bytes) {
  EndpointAddress address;
  std::uint32_t magic = 0;
  const std::byte* from = bytes.data();
  const std::byte* const end = from + bytes.size();
  const bool whole = take(from, end, magic) && take(from, end, address.boot_id) &&
                     take(from, end, address.network_namespace) && take(from, end, address.user) &&
                     take(from, end, address.name) && take(from, end, address.token) && take(from, end, address.proof);
  if (!whole || magic != kAddressMagic || static_cast<std::size_t>(end - from) > kLongestRefusal) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a rank's address for shared memory",
                 .cause = fmt::format("{} bytes that are no such address", bytes.size()),
                 .hint = "all ranks must use the same version of libddp"}};
  }
  address.refusal.assign(reinterpret_cast<const char*>(from), static_cast<std::size_t>(end - from));
  return address;
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
