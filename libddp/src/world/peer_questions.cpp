#include "world/peer_questions.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/unique_fd.hpp"

namespace ddp::world {
namespace {

// Sockets open at a time, so that asking thousands of ranks does not run into RLIMIT_NOFILE (commonly 1024).
constexpr std::size_t kAtOnce = 128;
// A busy peer has room again as soon as it has answered those before.
constexpr auto kBusyPause = std::chrono::milliseconds(20);

}  // namespace

/// One question over one connection.
class PeerInquiry::Question {
 public:
  Question(const PeerEndpoint& endpoint, const std::string& service, const Bytes& body)
      : request_(encode(PeerRequest{.token = endpoint.token, .service = service, .body = body})) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* address = nullptr;
    const int status = getaddrinfo(endpoint.address.c_str(), std::to_string(endpoint.port).c_str(), &wanted, &address);
    if (status != 0) {
      finish(PeerReply::Kind::refused, fmt::format("{}: {}", endpoint.address, gai_strerror(status)));
      return;
    }
    fd_.reset(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int connected = fd_ ? ::connect(fd_.get(), address->ai_addr, address->ai_addrlen) : -1;
    const int number = errno;
    freeaddrinfo(address);
    if (connected != 0 && number != EINPROGRESS) fail(number);
  }

  bool finished() const { return finished_; }
  PeerReply reply() && { return std::move(reply_); }
  pollfd poll_entry() const {
    return {.fd = fd_.get(), .events = static_cast<short>(sent_ < request_.size() ? POLLOUT : POLLIN), .revents = 0};
  }

  void advance() {
    if (sent_ < request_.size()) {
      const ssize_t sent = ::send(fd_.get(), request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (sent >= 0) {
        sent_ += static_cast<std::size_t>(sent);
        return;
      }
      // the peer may have said why before it hung up
      if (errno != EPIPE && errno != ECONNRESET) return fail(errno);
      sent_ = request_.size();
    }
    std::array<std::byte, 4096> chunk;
    const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
    if (got < 0) return fail(errno);
    if (got == 0) return finish(PeerReply::Kind::hung_up, "it hung up");
    received_.insert(received_.end(), chunk.begin(), chunk.begin() + got);
    try {
      if (auto answer = decode_peer_answer(received_)) take(std::move(*answer));
    } catch (const Error& error) {
      finish(PeerReply::Kind::failed, error.what());
    }
  }

 private:
  void take(PeerAnswer answer) {
    switch (answer.status) {
      case PeerStatus::ok: reply_.body = std::move(answer.body); return finish(PeerReply::Kind::answered, "");
      case PeerStatus::unknown_service: return finish(PeerReply::Kind::failed, "it does not know the question");
      case PeerStatus::busy: return finish(PeerReply::Kind::busy, "it is busy");
      case PeerStatus::failed: return finish(PeerReply::Kind::failed, base::to_text(answer.body));
    }
  }
  static PeerReply::Kind kind_of(int number) {
    switch (number) {
      case ECONNREFUSED: return PeerReply::Kind::refused;
      case ECONNRESET:
      case EPIPE: return PeerReply::Kind::hung_up;
      // no descriptor, port or memory left here: no evidence about the peer
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
      case EADDRNOTAVAIL: return PeerReply::Kind::not_asked;
      default: return PeerReply::Kind::unreachable;
    }
  }
  void fail(int number) {
    if (number == EAGAIN || number == EINTR || number == EINPROGRESS) return;
    finish(kind_of(number), base::errno_name(number));
  }
  void finish(PeerReply::Kind kind, std::string problem) {
    reply_.kind = kind;
    reply_.problem = std::move(problem);
    finished_ = true;
    fd_.reset();
  }

  Bytes request_;
  std::size_t sent_ = 0;
  Bytes received_;
  base::UniqueFd fd_;
  bool finished_ = false;
  PeerReply reply_;
};

PeerInquiry::PeerInquiry(std::vector<PeerEndpoint> endpoints, const std::string& service,
                         std::span<const std::byte> body)
    : endpoints_(std::move(endpoints)), service_(service), body_(body.begin(), body.end()), open_(endpoints_.size()) {}

PeerInquiry::~PeerInquiry() = default;

void PeerInquiry::ask(std::size_t peer) {
  if (asking(peer)) close(peer);
  if (std::find(queued_.begin(), queued_.end(), peer) == queued_.end()) queued_.push_back(peer);
  fill();
}

void PeerInquiry::fill() {
  while (!queued_.empty() && opened_ < kAtOnce) {
    const std::size_t peer = queued_.front();
    queued_.pop_front();
    open_[peer] = std::make_unique<Question>(endpoints_[peer], service_, body_);
    ++opened_;
  }
}

void PeerInquiry::close(std::size_t peer) {
  open_[peer].reset();
  --opened_;
}

std::vector<std::pair<std::size_t, PeerReply>> PeerInquiry::wait(Deadline deadline) {
  std::vector<std::pair<std::size_t, PeerReply>> replies;
  std::vector<pollfd> entries;
  std::vector<std::size_t> peers;
  for (;;) {
    fill();
    for (std::size_t peer = 0; peer < open_.size(); ++peer) {
      if (!asking(peer) || !open_[peer]->finished()) continue;
      replies.emplace_back(peer, std::move(*open_[peer]).reply());
      close(peer);
    }
    if (!replies.empty()) {
      fill();
      return replies;
    }
    entries.clear();
    peers.clear();
    for (std::size_t peer = 0; peer < open_.size(); ++peer) {
      if (!asking(peer)) continue;
      entries.push_back(open_[peer]->poll_entry());
      peers.push_back(peer);
    }
    const bool over = deadline.expired();
    const int ready = ::poll(entries.data(), entries.size(), deadline.poll_timeout_ms());
    for (std::size_t i = 0; ready > 0 && i < entries.size(); ++i) {
      if (entries[i].revents != 0) open_[peers[i]]->advance();
    }
    if (over && ready <= 0) return replies;
  }
}

std::vector<PeerReply> ask_peers(const std::vector<PeerEndpoint>& endpoints, const std::string& service,
                                 std::span<const std::byte> body, Deadline deadline) {
  std::vector<PeerReply> replies(endpoints.size(),
                                 {.kind = PeerReply::Kind::not_asked, .problem = "not asked before the deadline"});
  PeerInquiry inquiry(endpoints, service, body);
  for (std::size_t peer = 0; peer < endpoints.size(); ++peer) inquiry.ask(peer);
  while (inquiry.waiting()) {
    auto heard = inquiry.wait(deadline);
    if (heard.empty()) break;
    bool busy = false;
    for (auto& [peer, reply] : heard) {
      replies[peer] = std::move(reply);
      if (replies[peer].kind != PeerReply::Kind::busy || deadline.expired()) continue;
      inquiry.ask(peer);
      busy = true;
    }
    if (busy) std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kBusyPause, deadline.remaining()));
  }
  for (std::size_t peer = 0; peer < endpoints.size(); ++peer) {
    if (!inquiry.asking(peer) || replies[peer].kind == PeerReply::Kind::busy) continue;
    replies[peer] = {.kind = PeerReply::Kind::no_answer, .problem = "no answer before the deadline"};
  }
  return replies;
}

}  // namespace ddp::world
