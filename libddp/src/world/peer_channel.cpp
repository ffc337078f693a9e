#include "world/peer_channel.hpp"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"

namespace ddp::world {
namespace {

// A peer sends its one small request at once.
constexpr auto kPatience = std::chrono::seconds(5);
// Connections that have not shown the token, and others. Enough for peers, too few for strangers to exhaust a training
// process's descriptors.
constexpr std::size_t kMostStrangers = 96;
constexpr std::size_t kMostAsked = 32;
constexpr auto kPause = std::chrono::milliseconds(100);

/// Does not tell by its time how much of the token is right.
bool same(const ChannelToken& a, const ChannelToken& b) {
  std::byte difference{};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

/// The beginning of a request, up to its token: of strangers, no more is read than what proves them.
class TokenCheck final : public stream::Conversation {
 public:
  explicit TokenCheck(const ChannelToken& token) : token_(token) { received_.reserve(kPeerRequestHeaderBytes); }

  std::size_t due() const override { return kPeerRequestHeaderBytes - received_.size(); }
  void take(std::span<const std::byte> bytes) override {
    received_.insert(received_.end(), bytes.begin(), bytes.end());
    const auto shown = decode_peer_token(received_);
    proven_ = shown && same(*shown, token_);
    if (proven_ || !shown) return;
    throw Error{{.code = ErrorCode::conflict, .attempted = "answering a peer", .cause = "it does not know the token"}};
  }
  bool proven() const override { return proven_; }
  Bytes received() { return std::move(received_); }

 private:
  const ChannelToken& token_;
  Bytes received_;
  bool proven_ = false;
};

std::vector<base::UniqueFd> listen_at(const std::string& address) {
  std::vector<base::UniqueFd> sockets;
  sockets.push_back(base::listen_tcp(address));
  return sockets;
}

}  // namespace

/// A peer's question.
struct PeerChannel::Asked {
  base::UnsharedFd fd;
  Bytes received{};
  Deadline deadline = Deadline::after(kPatience);
  Bytes outgoing = {};
  std::size_t sent = 0;
};

PeerChannel::PeerChannel(const std::string& address)
    : busy_(encode(PeerAnswer{.status = PeerStatus::busy})), late_(loop_, [this] { drop_late(); }) {
  if (::getrandom(token_.data(), token_.size(), 0) != static_cast<ssize_t>(token_.size())) {
    throw base::system_error("starting the peer channel (getrandom)", errno);
  }
  asked_.reserve(kMostAsked);
  loop_.watch(wake_.fd(), [this] { stopped_ = true; });
  door_ = std::make_unique<stream::Admission>(
      loop_, listen_at(address), stream::StrangerLimits{.most = kMostStrangers, .patience = kPatience},
      stream::Admission::Handlers{.greet = [this](int) { return std::make_unique<TokenCheck>(token_); },
                                  .proven =
                                      [this](base::UnsharedFd socket, const sockaddr_storage&, auto conversation) {
                                        take_in(std::move(socket), static_cast<TokenCheck&>(*conversation).received());
                                      },
                                  .refused =
                                      [this](const stream::Refusal& refusal) {
                                        if (refusal.reason == stream::Refusal::Reason::crowded)
                                          refuse_busy(refusal.socket);
                                      }});
  port_ = base::local_port(door_->sockets().front().get());
  thread_ = base::start_thread([this] { run(); });
}

PeerChannel::~PeerChannel() {
  wake_.ring();
  thread_.join();
}

void PeerChannel::serve(const std::string& service, Handler handler) {
  const std::lock_guard lock(handlers_mutex_);
  handlers_[service] = std::move(handler);
}

void PeerChannel::unserve(const std::string& service) {
  const std::lock_guard lock(handlers_mutex_);
  handlers_.erase(service);
}

void PeerChannel::run() {
  while (!stopped_) {
    try {
      loop_.run_once(Deadline::after(std::chrono::hours(1)));
    } catch (const std::exception& error) {  // for want of memory, which others may give back
      base::log(base::LogLevel::debug, "the peer channel: {}", error.what());
      std::this_thread::sleep_for(kPause);
    }
  }
}

void PeerChannel::take_in(base::UnsharedFd socket, Bytes received) {
  auto asked = std::make_unique<Asked>(Asked{.fd = std::move(socket), .received = std::move(received)});
  if (!advance(*asked)) return;
  const int fd = asked->fd.get();
  if (asked_.size() == kMostAsked) {
    if (asked->sent == 0) refuse_busy(fd);
    return;
  }
  asked_.push_back(std::move(asked));
  late_.set(asked_.front()->deadline);
  try {
    const Asked& last = *asked_.back();
    loop_.watch(fd, last.outgoing.empty() ? EPOLLIN : EPOLLOUT, [this, fd](std::uint32_t) {
      const auto found =
          std::find_if(asked_.begin(), asked_.end(), [fd](const auto& each) { return each->fd.get() == fd; });
      if (!advance(**found)) return drop(fd);
      if (!(*found)->outgoing.empty()) loop_.change(fd, EPOLLOUT);
    });
  } catch (...) {
    drop(fd);
    throw;
  }
}

void PeerChannel::drop(int fd) {
  loop_.forget(fd);
  std::erase_if(asked_, [fd](const auto& each) { return each->fd.get() == fd; });
}

void PeerChannel::drop_late() {
  while (!asked_.empty() && asked_.front()->deadline.expired()) drop(asked_.front()->fd.get());
  if (!asked_.empty()) late_.set(asked_.front()->deadline);
}

bool PeerChannel::advance(Asked& asked) {
  try {
    if (asked.outgoing.empty() && !receive(asked)) return false;
    if (asked.outgoing.empty()) return true;
    const auto rest = std::span(asked.outgoing).subspan(asked.sent);
    const ssize_t sent = ::send(asked.fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) asked.sent += static_cast<std::size_t>(sent);
    return asked.sent < asked.outgoing.size();
  } catch (const std::exception& error) {  // also for want of memory
    base::log(base::LogLevel::debug, "the peer channel drops a connection: {}", error.what());
    return false;
  }
}

/// False when the connection is at its end.
bool PeerChannel::receive(Asked& asked) {
  std::array<std::byte, 4096> chunk;
  for (;;) {
    if (const auto request = decode_peer_request(asked.received)) {
      asked.outgoing = answer(*request);
      return true;
    }
    const ssize_t got = ::recv(asked.fd.get(), chunk.data(), chunk.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    asked.received.insert(asked.received.end(), chunk.begin(), chunk.begin() + got);
  }
}

void PeerChannel::refuse_busy(int socket) const {
  ::send(socket, busy_.data(), busy_.size(), MSG_NOSIGNAL);
  // what has been read does not turn the end of the connection into a reset, which may overtake the answer
  std::array<std::byte, 4096> chunk;
  ::recv(socket, chunk.data(), chunk.size(), MSG_DONTWAIT);
}

Bytes PeerChannel::answer(const PeerRequest& request) {
  const std::lock_guard lock(handlers_mutex_);
  const auto handler = handlers_.find(request.service);
  if (handler == handlers_.end()) return encode(PeerAnswer{.status = PeerStatus::unknown_service});
  try {
    return encode(PeerAnswer{.status = PeerStatus::ok, .body = handler->second(request.body)});
  } catch (const std::exception& error) {
    return encode(PeerAnswer{.status = PeerStatus::failed, .body = base::to_bytes(error.what())});
  }
}

}  // namespace ddp::world
