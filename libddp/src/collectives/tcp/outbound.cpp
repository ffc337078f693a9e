#include "collectives/tcp/outbound.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::collectives::tcp {

Outbound::Outbound(const MeshIdentity& identity, int to, const std::string& address) : identity_(&identity), to_(to) {
  const RankRecord& record = identity.record(to);
  try {
    const auto theirs = base::resolve(record.address, record.port, AI_NUMERICHOST, "connecting to a rank");
    const auto ours = base::resolve(address, 0, AI_NUMERICHOST, "connecting to a rank");
    socket_.reset(::socket(theirs->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket_) {
      error_ = errno;
      return;
    }
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // From the job's interface, so that the answer comes back over it. The port is chosen in connect.
    ::setsockopt(socket_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (ours->ai_family == theirs->ai_family) ::bind(socket_.get(), ours->ai_addr, ours->ai_addrlen);
    if (::connect(socket_.get(), theirs->ai_addr, theirs->ai_addrlen) != 0 && errno != EINPROGRESS) error_ = errno;
  } catch (const Error& error) {
    problem_ = error.cause();
    error_ = EINVAL;
  }
}

Outbound::State Outbound::fail(State state, std::string problem, int error) {
  problem_ = std::move(problem);
  error_ = error;
  socket_.reset();
  return state;
}

Outbound::State Outbound::finish_connecting() {
  if (error_ != 0) {
    const int error = error_;
    const State state = problem_.empty() && !socket_ ? State::no_socket
                        : error == ECONNREFUSED      ? State::gone
                                                     : State::broken;
    return fail(state, problem_.empty() ? base::errno_text(error) : problem_, error);
  }
  pollfd entry{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&entry, 1, 0) <= 0) return State::pending;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(error == ECONNREFUSED ? State::gone : State::broken, base::errno_text(error), error);
  hello_ = {.from = static_cast<std::uint32_t>(identity_->rank()),
            .to = static_cast<std::uint32_t>(to_),
            .nonce = random_key()};
  const HelloBytes bytes = encode(hello_);
  if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(bytes.size()))
    return fail(State::broken, "it closed the connection", errno);
  phase_ = Phase::challenged;
  return State::pending;
}

Outbound::State Outbound::answer_challenge() {
  Nonce nonce{};
  std::copy_n(received_.begin(), nonce.size(), nonce.begin());
  if (!identity_->proves(std::span(received_).subspan(nonce.size()), Side::accepting, hello_, nonce))
    return fail(State::gone, "what listens at its address does not belong to the group");
  const Proof proof = identity_->prove(Side::connecting, hello_, nonce);
  if (::send(socket_.get(), proof.data(), proof.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
      static_cast<ssize_t>(proof.size()))
    return fail(State::broken, "it closed the connection", errno);
  phase_ = Phase::judged;
  filled_ = 0;
  return State::pending;
}

Outbound::State Outbound::advance() {
  if (phase_ == Phase::connecting) {
    const State state = finish_connecting();
    if (state != State::pending || phase_ == Phase::connecting) return state;
  }
  for (;;) {
    const std::size_t due = phase_ == Phase::challenged ? kChallengeBytes : sizeof(Verdict);
    const ssize_t got = ::recv(socket_.get(), received_.data() + filled_, due - filled_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::pending;
    if (got <= 0) return fail(State::broken, "it closed the connection before its welcome", got < 0 ? errno : 0);
    filled_ += static_cast<std::size_t>(got);
    if (filled_ < due) continue;
    if (phase_ == Phase::judged) {
      const auto verdict = static_cast<Verdict>(received_[0]);
      if (verdict == Verdict::welcome) return State::welcome;
      if (verdict == Verdict::crossed) return fail(State::crossed, "it connects to this rank");
      return fail(State::broken, "it gave no welcome");
    }
    const State state = answer_challenge();
    if (state != State::pending) return state;
  }
}

}  // namespace ddp::collectives::tcp
