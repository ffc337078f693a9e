#include "doctor/probe.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::size_t kTrainBytes = 62'000;  // as much as one UDP send takes
constexpr std::uint32_t kMostPackets = 40;   // in a train; Linux takes 64
constexpr std::uint32_t kFewestPackets = 4;  // for a usable estimate
constexpr std::uint32_t kFewestIntervals = 3;

}  // namespace

PacketTrains::PacketTrains(std::int64_t rate_mbps, std::size_t packet_bytes, std::size_t header_bytes) {
  const std::size_t largest = kTrainBytes / kFewestPackets;
  payload_ = std::min(packet_bytes - std::min(packet_bytes, header_bytes), largest);
  packet_bits_ = static_cast<std::int64_t>((payload_ + header_bytes) * 8);
  settled_ = rate_mbps <= 0 || payload_ < kTokenBytes + sizeof(std::uint32_t);
  if (settled_) return;
  length_ = std::min(kMostPackets, static_cast<std::uint32_t>(kTrainBytes / payload_));
  enough_ = std::min(rate_mbps, kMostMeasurableMbps) / 2;
}

Bytes PacketTrains::next(const Bytes& token) {
  Bytes train;
  train.reserve(length_ * payload_);
  for (std::uint32_t i = 0; i < length_; ++i) {
    Bytes packet = probe_packet(token, static_cast<std::uint32_t>(sent_ + 1) << 8U | i);
    packet.resize(payload_);
    train.insert(train.end(), packet.begin(), packet.end());
  }
  ++sent_;
  return train;
}

void PacketTrains::answered(const ProbeReply& reply) {
  const std::uint32_t train = reply.number >> 8U;
  const std::uint32_t place = reply.number & 0xffU;
  if (settled_ || train == 0 || train > static_cast<std::uint32_t>(sent_) || place >= length_) return;
  if (reply.arrived_ns == 0) {  // its kernel has no time stamps
    settled_ = true;
    return;
  }
  if (train != train_) {
    train_ = train;
    first_ = place;
    first_at_ns_ = reply.arrived_ns;
  }
  if (place + 1 != length_) return;
  if (place >= first_ + kFewestIntervals) {
    const std::int64_t took_ns = std::max<std::int64_t>(reply.arrived_ns - first_at_ns_, 1);
    const std::int64_t mbps = (place - first_) * packet_bits_ * 1000 / took_ns;
    best_ = std::max(best_, std::clamp<std::int64_t>(mbps, 1, kMostMeasurableMbps));
  }
  settled_ = best_ >= enough_ || train == kMost;
}

// The answering side of the probes.

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

/// Time of SO_TIMESTAMPNS; 0 if the kernel has none.
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
    ::setsockopt(udp.get(), SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);  // required to measure bandwidth
    base::UniqueFd tcp;
    try {
      tcp = base::listen_tcp(wanted.address);
    } catch (const Error&) {  // the interface has just lost the address
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

namespace {

using Clock = Deadline::Clock;

constexpr std::size_t kSmallBytes = 64;
constexpr std::size_t kHeaderBytesIpv4 = 20 + 8;  // IP and UDP
constexpr std::size_t kHeaderBytesIpv6 = 40 + 8;
constexpr auto kSendAgain = std::chrono::milliseconds(100);
constexpr auto kTrainsApart = std::chrono::milliseconds(5);
constexpr int kMostNodesProbedByAll = 17;

/// The state of one target during its probe.
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
    // the kernel or the device does not segment them
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

  /// Sends packets as large as both ends' interfaces take; routers may not fragment them.
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

  /// The interface that packets to the target leave by; empty if unknown.
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

  /// A router, or this host's route, reported that large packets do not pass: senders learn that and send smaller
  /// packets. Only silent loss is a fault.
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
        result_.packet = PacketEnd::lost;  // unless a large one arrives
      }
    }
  }

  const ProbeTarget& target_;
  SocketAddress address_;
  base::UniqueFd tcp_;
  base::UniqueFd udp_;
  std::size_t large_bytes_ = 0;
  bool stream_done_ = false;
  bool told_ = false;  ///< a router or route reported that large packets do not pass
  std::optional<PacketTrains> trains_;
  ProbeResult result_;
};

/// Spreads trains: nodes that start together should not send to the same target at the same time.
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
