// The answering side of the probes.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <span>
#include <thread>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "doctor/probe.hpp"
#include "doctor/probe_packet.hpp"

namespace ddp::tools::doctor {

SocketAddress SocketAddress::of(const std::string& address, std::uint16_t port) {
  SocketAddress made;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&made.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&made.storage);
  if (::inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    made.length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    made.length = sizeof *v6;
  }
  return made;
}

namespace {

/// As of SO_TIMESTAMPNS; 0 if the kernel does not tell.
std::int64_t arrival_of(msghdr& message) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec time{};
    std::memcpy(&time, CMSG_DATA(each), sizeof time);
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
  return 0;
}

}  // namespace

struct ProbeAnswers::State {
  std::vector<ProbeListener> listeners;
  std::vector<base::UniqueFd> streams;
  std::vector<base::UniqueFd> datagrams;
  Bytes token;
  base::WakeEvent stop;
  std::thread thread;

  bool listen(ProbeListener wanted) {
    const SocketAddress at = SocketAddress::of(wanted.address, 0);
    if (at.length == 0) return false;
    base::UniqueFd udp{::socket(at.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!udp || ::bind(udp.get(), at.get(), at.length) != 0) return false;
    const int yes = 1;
    ::setsockopt(udp.get(), SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);  // without it, no bandwidth is told
    base::UniqueFd tcp;
    try {
      tcp = base::listen_tcp(wanted.address);
    } catch (const Error&) {  // the interface has just lost it
      return false;
    }
    wanted.tcp_port = base::local_port(tcp.get());
    wanted.udp_port = base::local_port(udp.get());
    streams.push_back(std::move(tcp));
    datagrams.push_back(std::move(udp));
    listeners.push_back(std::move(wanted));
    return true;
  }

  void answer(int fd, std::vector<std::byte>& buffer) const {
    SocketAddress from;
    iovec into{.iov_base = buffer.data(), .iov_len = buffer.size()};
    alignas(cmsghdr) std::array<char, 256> control{};
    msghdr message{};
    message.msg_name = from.get();
    message.msg_namelen = sizeof from.storage;
    message.msg_iov = &into;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t size = ::recvmsg(fd, &message, 0);
    if (size < static_cast<ssize_t>(kTokenBytes + sizeof(std::uint32_t))) return;
    if (!std::equal(token.begin(), token.end(), buffer.begin())) return;
    base::ByteReader reader{std::span<const std::byte>(buffer).subspan(kTokenBytes), "probe"};
    const auto reply = probe_reply(token, {.arrived_bytes = static_cast<std::uint32_t>(size),
                                           .number = reader.integer<std::uint32_t>(),
                                           .arrived_ns = arrival_of(message)});
    ::sendto(fd, reply.data(), reply.size(), 0, from.get(), message.msg_namelen);
  }

  void serve() const {
    std::vector<std::byte> buffer(kLargestPacket);
    std::vector<pollfd> waiting{{.fd = stop.fd(), .events = POLLIN, .revents = 0}};
    for (const auto& udp : datagrams) waiting.push_back({.fd = udp.get(), .events = POLLIN, .revents = 0});
    while (::poll(waiting.data(), waiting.size(), -1) >= 0 || errno == EINTR) {
      if (waiting.front().revents != 0) return;
      for (std::size_t i = 1; i < waiting.size(); ++i) {
        if (waiting[i].revents != 0) answer(waiting[i].fd, buffer);
      }
    }
  }
};

ProbeAnswers::ProbeAnswers(const std::vector<ProbeListener>& wanted) : state_(std::make_unique<State>()) {
  state_->token.resize(kTokenBytes);
  if (::getrandom(state_->token.data(), kTokenBytes, 0) != static_cast<ssize_t>(kTokenBytes)) {
    throw base::system_error("making a token for probes (getrandom)", errno);
  }
  for (const ProbeListener& each : wanted) {
    if (state_->listeners.size() < kMostListeners) state_->listen(each);
  }
  state_->thread = std::thread([state = state_.get()] { state->serve(); });
}

ProbeAnswers::~ProbeAnswers() {
  state_->stop.ring();
  state_->thread.join();
}

const std::vector<ProbeListener>& ProbeAnswers::listeners() const { return state_->listeners; }
const Bytes& ProbeAnswers::token() const { return state_->token; }

}  // namespace ddp::tools::doctor
