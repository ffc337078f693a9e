#include "store_server/socket_owner.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include <ddp/deadline.hpp>

#include "base/socket.hpp"

namespace ddp::store_server {
namespace {

/// The kernel answers at once; this bounds what a broken one could do.
constexpr std::chrono::seconds kAnswerLimit{1};

struct DiagRequest {
  nlmsghdr header{};
  inet_diag_req_v2 body{};
};

void put_address(__be32 (&words)[4], const PeerAddress& address) {
  const auto& bytes = address.bytes();
  if (address.is_v4()) {
    std::memcpy(words, bytes.data() + 12, 4);
  } else {
    std::memcpy(words, bytes.data(), 16);
  }
}

DiagRequest diag_request(const Endpoint& own, const Endpoint& other, std::uint32_t sequence) {
  DiagRequest request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_seq = sequence;
  // The kernel finds IPv6 sockets with IPv4-mapped addresses by this, too.
  request.body.sdiag_family = own.address.is_v4() ? AF_INET : AF_INET6;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0U;
  inet_diag_sockid& id = request.body.id;
  id.idiag_sport = htons(own.port);
  id.idiag_dport = htons(other.port);
  put_address(id.idiag_src, own.address);
  put_address(id.idiag_dst, other.address);
  id.idiag_if = other.interface;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

/// As /proc/net/tcp writes an address: 32-bit words of it as this host reads them.
std::string hex_words(const std::uint8_t* bytes, std::size_t words) {
  std::string text;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes + 4 * i, sizeof word);
    text += fmt::format("{:08X}", word);
  }
  return text;
}

std::string table_entry(const Endpoint& end, bool v4) {
  const auto& bytes = end.address.bytes();
  return fmt::format("{}:{:04X}", v4 ? hex_words(bytes.data() + 12, 1) : hex_words(bytes.data(), 4), end.port);
}

std::optional<uid_t> find_in_table(const char* path, bool v4, const Endpoint& own, const Endpoint& other) {
  const std::string wanted_own = table_entry(own, v4);
  const std::string wanted_other = table_entry(other, v4);
  std::ifstream table(path);
  for (std::string line; std::getline(table, line);) {
    if (line.find(wanted_own) == std::string::npos) continue;
    std::istringstream fields(line);
    std::string number, from, to, state, queues, timer, retries;
    uid_t uid = 0;
    unsigned long timeout = 0, inode = 0;
    fields >> number >> from >> to >> state >> queues >> timer >> retries >> uid >> timeout >> inode;
    if (fields && from == wanted_own && to == wanted_other && state == "01" && inode != 0) return uid;
  }
  return std::nullopt;
}

/// Where the user has no id in its user namespace, the kernel shows all such users as one.
bool own_user_has_id() {
  std::ifstream map("/proc/self/uid_map");
  if (!map) return true;  // no user namespaces
  const auto own = static_cast<unsigned long>(::geteuid());
  for (unsigned long first = 0, outside = 0, count = 0; map >> first >> outside >> count;) {
    if (own >= first && own - first < count) return true;
  }
  return false;
}

}  // namespace

std::string SocketOwner::reason() const {
  switch (kind) {
    case Kind::ours: return "it belongs to the job's user";
    case Kind::other_user: return fmt::format("it belongs to uid {}, not to the job's user (uid {})", uid, ::geteuid());
    case Kind::unknowable:
      return "the job's user has no id in its user namespace, so users cannot be distinguished there";
    case Kind::none: break;
  }
  return "no process there has this connection: is it one of a container with a network of its own, or translated on "
         "the way (NAT)?";
}

SocketOwners::SocketOwners(bool ask_kernel)
    : netlink_(ask_kernel ? ::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_SOCK_DIAG) : -1),
      knowable_(own_user_has_id()) {}

SocketOwner SocketOwners::owner_of(const Endpoint& own, const Endpoint& other) {
  if (!knowable_) return {.kind = SocketOwner::Kind::unknowable, .uid = 0};
  bool absent = false;
  std::optional<uid_t> uid = ask_kernel(own, other, absent);
  works_ = works_ || uid;
  if (!uid && !(works_ && absent)) {
    if (own.address.is_v4()) uid = find_in_table("/proc/net/tcp", true, own, other);
    if (!uid) uid = find_in_table("/proc/net/tcp6", false, own, other);
  }
  if (!uid) return {.kind = SocketOwner::Kind::none, .uid = 0};
  return {.kind = *uid == ::geteuid() ? SocketOwner::Kind::ours : SocketOwner::Kind::other_user, .uid = *uid};
}

std::optional<uid_t> SocketOwners::ask_kernel(const Endpoint& own, const Endpoint& other, bool& absent) {
  if (!netlink_) return std::nullopt;
  const DiagRequest request = diag_request(own, other, ++sequence_);
  if (::send(netlink_.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) return std::nullopt;
  const Deadline deadline = Deadline::after(kAnswerLimit);
  while (base::wait_for(netlink_.get(), POLLIN, deadline)) {
    alignas(nlmsghdr) std::array<char, 8192> buffer;
    const ssize_t count = ::recv(netlink_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    nlmsghdr header{};
    if (count < static_cast<ssize_t>(sizeof header)) return std::nullopt;
    std::memcpy(&header, buffer.data(), sizeof header);
    if (header.nlmsg_seq != sequence_) continue;  // of an earlier request that was given up
    inet_diag_msg found{};
    if (header.nlmsg_type == NLMSG_ERROR && count >= static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(nlmsgerr))) {
      nlmsgerr error{};
      std::memcpy(&error, buffer.data() + NLMSG_HDRLEN, sizeof error);
      absent = error.error == -ENOENT;
    }
    if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || count < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof found)) {
      return std::nullopt;
    }
    absent = true;  // unless it is the right one
    std::memcpy(&found, buffer.data() + NLMSG_HDRLEN, sizeof found);
    // Without such a connection the kernel may find who listens at that port.
    const bool same = found.id.idiag_sport == htons(own.port) && found.id.idiag_dport == htons(other.port);
    if (!same || found.idiag_state != TCP_ESTABLISHED || found.idiag_inode == 0) return std::nullopt;
    return found.idiag_uid;
  }
  return std::nullopt;
}

}  // namespace ddp::store_server
