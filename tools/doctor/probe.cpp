#include "doctor/probe.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <span>

#include "base/unique_fd.hpp"
#include "doctor/packet_train.hpp"
#include "doctor/probe_packet.hpp"

namespace ddp::tools::doctor {
namespace {

using Clock = Deadline::Clock;

constexpr std::size_t kSmallBytes = 64;
constexpr std::size_t kHeaderBytesIpv4 = 20 + 8;  // IP and UDP
constexpr std::size_t kHeaderBytesIpv6 = 40 + 8;
constexpr auto kSendAgain = std::chrono::milliseconds(100);
constexpr auto kTrainsApart = std::chrono::milliseconds(5);
constexpr int kMostNodesProbedByAll = 17;

/// One target while it is probed.
class Attempt {
 public:
  Attempt(const ProbeTarget& target, const std::vector<InterfaceFacts>& own)
      : target_(target), address_(SocketAddress::of(target.listener.address, target.listener.tcp_port)) {
    result_.to_node = target.to_node;
    result_.interface = target.listener.interface;
    result_.address = target.listener.address;
    if (address_.length == 0) {
      note_stream(EADDRNOTAVAIL);
      return;
    }
    tcp_ = open(SOCK_STREAM);
    if (tcp_ && ::connect(tcp_.get(), address_.get(), address_.length) == 0) {
      note_stream(0);
    } else if (errno != EINPROGRESS) {
      note_stream(errno);
    }
    open_datagrams(own);
  }

  bool done() const { return stream_done_ && (result_.end != ProbeEnd::reached || (packet_done() && !wants_train())); }
  bool packet_done() const { return !udp_ || told_ || result_.packet == PacketEnd::passed; }
  const ProbeResult& result() const { return result_; }

  bool wants_train() const { return trains_ && result_.packet == PacketEnd::passed && !trains_->settled(); }
  void send_train() {
    Bytes train = trains_->next(target_.token);
    iovec from{.iov_base = train.data(), .iov_len = train.size()};
    const auto size = static_cast<std::uint16_t>(trains_->packet_size());
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof size)> control{};
    msghdr message{};
    message.msg_iov = &from;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const cut = CMSG_FIRSTHDR(&message);
    cut->cmsg_level = SOL_UDP;
    cut->cmsg_type = UDP_SEGMENT;
    cut->cmsg_len = CMSG_LEN(sizeof size);
    std::memcpy(CMSG_DATA(cut), &size, sizeof size);
    if (::sendmsg(udp_.get(), &message, MSG_NOSIGNAL) >= 0 || errno == EAGAIN) return;
    // a kernel or a device that does not cut them
    for (std::size_t at = 0; at < train.size(); at += size) ::send(udp_.get(), &train[at], size, MSG_NOSIGNAL);
  }

  void send() {
    if (!udp_ || packet_done()) return;
    send_bytes(kSmallBytes);
    send_bytes(large_bytes_);
  }

  void wait_in(std::vector<pollfd>& waiting) const {
    if (!stream_done_) waiting.push_back({.fd = tcp_.get(), .events = POLLOUT, .revents = 0});
    if (!packet_done() || wants_train()) waiting.push_back({.fd = udp_.get(), .events = POLLIN, .revents = 0});
  }

  void look() {
    if (!stream_done_) {
      pollfd ready{.fd = tcp_.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&ready, 1, 0) == 1) {
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(tcp_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        note_stream(error);
      }
    }
    receive();
  }

 private:
  base::UniqueFd open(int type) const {
    return base::UniqueFd{::socket(address_.storage.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  }

  void note_stream(int error) {
    stream_done_ = true;
    switch (error) {
      case 0: result_.end = ProbeEnd::reached; break;
      case ECONNREFUSED:
      case ECONNRESET: result_.end = ProbeEnd::refused; break;
      case ETIMEDOUT: result_.end = ProbeEnd::silent; break;
      default: result_.end = ProbeEnd::unreachable;
    }
  }

  /// Packets of the size that both ends' interfaces take, which no router may cut.
  void open_datagrams(const std::vector<InterfaceFacts>& own) {
    const SocketAddress to = SocketAddress::of(target_.listener.address, target_.listener.udp_port);
    udp_ = open(SOCK_DGRAM);
    if (!udp_ || ::connect(udp_.get(), to.get(), to.length) != 0) return udp_.reset();
    const bool ipv6 = to.storage.ss_family == AF_INET6;
    const int probe = ipv6 ? IPV6_PMTUDISC_PROBE : IP_PMTUDISC_PROBE;
    ::setsockopt(udp_.get(), ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &probe,
                 sizeof probe);
    const std::size_t headers = ipv6 ? kHeaderBytesIpv6 : kHeaderBytesIpv4;
    const InterfaceFacts leaving = leaving_interface(own);
    const std::int64_t packet = std::min({leaving.mtu, target_.listener.mtu, std::int64_t{kLargestPacket / 2}});
    if (packet < static_cast<std::int64_t>(headers + kSmallBytes)) return udp_.reset();
    result_.packet_bytes = packet;
    large_bytes_ = static_cast<std::size_t>(packet) - headers;
    result_.rate_mbps = std::min(leaving.rate_mbps, target_.listener.rate_mbps);
    trains_.emplace(result_.rate_mbps, static_cast<std::size_t>(packet), headers);
  }

  /// By which packets to the target leave; empty if unknown.
  InterfaceFacts leaving_interface(const std::vector<InterfaceFacts>& own) const {
    SocketAddress from;
    from.length = sizeof from.storage;
    if (::getsockname(udp_.get(), from.get(), &from.length) != 0) return {};
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* bits = from.storage.ss_family == AF_INET6
                           ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(from.get())->sin6_addr)
                           : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(from.get())->sin_addr);
    ::inet_ntop(from.storage.ss_family, bits, text.data(), text.size());
    for (const InterfaceFacts& interface : own) {
      const auto has = [&](const InterfaceAddress& each) { return each.address == text.data(); };
      if (std::any_of(interface.addresses.begin(), interface.addresses.end(), has)) return interface;
    }
    return {};
  }

  void send_bytes(std::size_t size) {
    std::vector<std::byte> packet(size);
    std::copy(target_.token.begin(), target_.token.end(), packet.begin());
    if (::send(udp_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0) note_refusal(errno);
  }

  /// A router, or this host's route, has said that large packets do not pass: whoever sends learns it and sends smaller
  /// ones. Only what is lost without a word is a fault.
  void note_refusal(int error) {
    if (error != EMSGSIZE) return;
    told_ = true;
    result_.packet = PacketEnd::untested;
  }

  void receive() {
    if (!udp_) return;
    std::array<std::byte, 256> buffer{};
    ssize_t size = 0;
    while (!told_) {
      size = ::recv(udp_.get(), buffer.data(), buffer.size(), 0);
      if (size < 0) return note_refusal(errno);
      const auto reply = read_probe_reply(target_.token, std::span(buffer).first(static_cast<std::size_t>(size)));
      if (!reply) continue;
      if (reply->number != 0) {
        if (trains_) trains_->answered(*reply);
        result_.path_mbps = trains_ ? trains_->mbps() : 0;
      } else if (reply->arrived_bytes == large_bytes_) {
        result_.packet = PacketEnd::passed;
      } else if (reply->arrived_bytes == kSmallBytes && result_.packet == PacketEnd::untested) {
        result_.packet = PacketEnd::lost;  // so far
      }
    }
  }

  const ProbeTarget& target_;
  SocketAddress address_;
  base::UniqueFd tcp_;
  base::UniqueFd udp_;
  std::size_t large_bytes_ = 0;
  bool stream_done_ = false;
  bool told_ = false;  ///< that large packets do not pass
  std::optional<PacketTrains> trains_;
  ProbeResult result_;
};

/// Of several nodes that begin at once, no two should send trains to a third at the same time.
Clock::duration random_pause() {
  std::random_device random;
  return std::chrono::microseconds(random() % 50'000);
}

}  // namespace

std::vector<ProbeResult> probe(const std::vector<ProbeTarget>& targets, const std::vector<InterfaceFacts>& own,
                               Deadline deadline) {
  std::vector<Attempt> attempts;
  attempts.reserve(targets.size());
  for (const ProbeTarget& target : targets) {
    if (target.token.size() == kTokenBytes) attempts.emplace_back(target, own);
  }
  auto next_send = Clock::now();
  auto next_train = Clock::now() + random_pause();
  std::size_t turn = 0;  // whose train is next
  const auto done = [](const Attempt& attempt) { return attempt.done(); };
  while (!std::all_of(attempts.begin(), attempts.end(), done) && Clock::now() < deadline.when()) {
    if (Clock::now() >= next_send) {
      for (Attempt& attempt : attempts) attempt.send();
      next_send = Clock::now() + kSendAgain;
    }
    if (Clock::now() >= next_train) {
      for (std::size_t i = 0; i < attempts.size(); ++i) {
        Attempt& attempt = attempts[turn++ % attempts.size()];
        if (!attempt.wants_train()) continue;
        attempt.send_train();
        break;
      }
      next_train = Clock::now() + kTrainsApart;
    }
    std::vector<pollfd> waiting;
    for (const Attempt& attempt : attempts) {
      if (!attempt.done()) attempt.wait_in(waiting);
    }
    const auto until = std::min({next_send, next_train, deadline.when()}) - Clock::now();
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until).count();
    ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(wait, 0)));
    for (Attempt& attempt : attempts) attempt.look();
  }
  std::vector<ProbeResult> results;
  for (const Attempt& attempt : attempts) results.push_back(attempt.result());
  return results;
}

std::vector<int> probed_nodes(int node, int num_nodes) {
  std::vector<int> found;
  for (int step = 1; step < num_nodes; step = num_nodes <= kMostNodesProbedByAll ? step + 1 : step * 2) {
    found.push_back((node + step) % num_nodes);
  }
  return found;
}

}  // namespace ddp::tools::doctor
