// The asking side of the peer channel: all peers at once, over non-blocking sockets in one poll loop.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "base/system_error.hpp"
#include "world/peer_channel.hpp"

namespace ddp::world {
namespace {

// Sockets open at a time, so that asking thousands of ranks does not run into RLIMIT_NOFILE (commonly 1024).
constexpr std::size_t kAtOnce = 128;

class Question {
 public:
  Question(const PeerEndpoint& endpoint, const std::string& service, std::span<const std::byte> body)
      : request_(
            encode(PeerRequest{.token = endpoint.token, .service = service, .body = Bytes(body.begin(), body.end())})) {
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
      if (sent < 0) return fail(errno);
      sent_ += static_cast<std::size_t>(sent);
      return;
    }
    std::array<std::byte, 4096> chunk;
    const ssize_t got = ::recv(fd_.get(), chunk.data(), chunk.size(), 0);
    if (got < 0) return fail(errno);
    if (got == 0) return finish(PeerReply::Kind::refused, "it hung up");
    received_.insert(received_.end(), chunk.begin(), chunk.begin() + got);
    try {
      auto answer = decode_peer_answer(received_);
      if (!answer) return;
      if (answer->status == PeerStatus::ok) {
        reply_.body = std::move(answer->body);
        finish(PeerReply::Kind::answered, "");
      } else if (answer->status == PeerStatus::unknown_service) {
        finish(PeerReply::Kind::failed, "it does not know the question");
      } else {
        finish(PeerReply::Kind::failed, base::to_text(answer->body));
      }
    } catch (const Error& error) {
      finish(PeerReply::Kind::failed, error.what());
    }
  }

 private:
  void fail(int number) {
    if (number == EAGAIN || number == EINTR || number == EINPROGRESS) return;
    // EHOSTUNREACH and the like do not imply that the peer exited; a refusal or reset does
    const bool gone = number == ECONNREFUSED || number == ECONNRESET || number == EPIPE;
    // no descriptor, port or memory left here: no evidence about the peer
    const bool own_fault =
        number == EMFILE || number == ENFILE || number == ENOBUFS || number == ENOMEM || number == EADDRNOTAVAIL;
    finish(gone        ? PeerReply::Kind::refused
           : own_fault ? PeerReply::Kind::not_asked
                       : PeerReply::Kind::no_answer,
           base::errno_name(number));
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
  PeerReply reply_{.kind = PeerReply::Kind::no_answer, .body = {}, .problem = "no answer before the deadline"};
};

}  // namespace

std::vector<PeerReply> ask_peers(const std::vector<PeerEndpoint>& endpoints, const std::string& service,
                                 std::span<const std::byte> body, Deadline deadline) {
  std::vector<PeerReply> replies(endpoints.size());
  std::vector<std::pair<std::size_t, Question>> open;
  std::size_t next = 0;
  for (;;) {
    while (next < endpoints.size() && open.size() < kAtOnce && !(next > 0 && deadline.expired())) {
      open.emplace_back(next, Question(endpoints[next], service, body));
      ++next;
    }
    std::erase_if(open, [&](auto& entry) {
      if (!entry.second.finished()) return false;
      replies[entry.first] = std::move(entry.second).reply();
      return true;
    });
    if (open.empty() && next == endpoints.size()) return replies;
    if (deadline.expired()) {
      for (auto& [index, question] : open) replies[index] = std::move(question).reply();
      for (; next < endpoints.size(); ++next) replies[next].problem = "not asked before the deadline";
      return replies;
    }
    if (open.empty()) continue;
    std::vector<pollfd> entries;
    for (const auto& [index, question] : open) entries.push_back(question.poll_entry());
    const int ready = ::poll(entries.data(), entries.size(), deadline.poll_timeout_ms());
    if (ready <= 0) continue;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (entries[i].revents != 0) open[i].second.advance();
    }
  }
}

}  // namespace ddp::world
