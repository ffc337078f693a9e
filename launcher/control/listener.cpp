// The accepting side of the handshake, as an event loop of its own inside the caller's.
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "control/pending_connections.hpp"
#include "control/proof_check.hpp"
#include "control/protocol_error.hpp"
#include "control/socket_address.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher::control {
namespace {

using Clock = Deadline::Clock;

// A source that has so many pending connections gives one up when there are no more descriptors.
constexpr std::size_t kCrowd = 16;
constexpr std::chrono::seconds kLogPause{1};
constexpr std::chrono::seconds kDescriptorPause{1};
constexpr int kAcceptsPerTurn = 64;
constexpr int kPortAttempts = 16;

base::UniqueFd listening_socket(const std::string& address, std::uint16_t port) {
  const std::string attempted = fmt::format("listening for agents at {}:{}", address.empty() ? "*" : address, port);
  const auto listen_at = [&](const std::string& host) {
    const AddressList addresses = resolve(host, port, AI_PASSIVE, attempted);
    base::UniqueFd fd = base::listen_at(*addresses);
    const int number = errno;
    if (fd) return fd;
    std::string hint;
    if (number == EADDRINUSE)
      hint = "another program on this host uses the port, perhaps another job; choose another port";
    if (number == EACCES) hint = "ports below 1024 are for root; choose another port";
    if (number == EADDRNOTAVAIL) hint = "the address is not one of this host's";
    throw base::system_error(attempted, number, std::move(hint));
  };
  if (!address.empty()) return listen_at(address);
  try {
    return listen_at("::");
  } catch (const Error& error) {
    if (error.native() == base::errno_name(EADDRINUSE) || error.native() == base::errno_name(EACCES)) throw;
  }
  return listen_at("0.0.0.0");  // there is no IPv6
}

std::vector<base::UniqueFd> listening_sockets(const std::vector<std::string>& addresses, std::uint16_t port) {
  std::vector<base::UniqueFd> sockets;
  std::optional<Error> unusable;
  for (const std::string& address : addresses) {
    try {
      sockets.push_back(
          listening_socket(address, port == 0 && !sockets.empty() ? base::local_port(sockets[0].get()) : port));
    } catch (const Error& error) {
      // Names may have addresses of a kind that this host does not use.
      if (error.native() != base::errno_name(EADDRNOTAVAIL) && error.native() != base::errno_name(EAFNOSUPPORT)) throw;
      unusable = error;
    }
  }
  if (sockets.empty() && unusable) throw *unusable;
  return sockets;
}

/// The port that the kernel chooses for the first address may be in use at another: then it chooses again.
std::vector<base::UniqueFd> listening_sockets_somewhere(const std::vector<std::string>& addresses, std::uint16_t port) {
  for (int left = port == 0 ? kPortAttempts : 1;; --left) {
    try {
      return listening_sockets(addresses, port);
    } catch (const Error& error) {
      if (left == 1 || error.native() != base::errno_name(EADDRINUSE)) throw;
    }
  }
}

/// At most half of the descriptors are for strangers.
std::size_t max_pending() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxPending;
  return static_cast<std::size_t>(std::min<rlim_t>(kMaxPending, limit.rlim_cur / 2));
}

/// Less than the send buffer of any new socket.
void send_answer(int fd, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(bytes.size())) refuse("accepting an agent", "it cannot be answered");
}

/// How much is still to come of a greeting or a proof.
std::size_t bytes_due(const PendingConnection& connection) {
  const std::size_t have = connection.received.size();
  if (!connection.theirs) return kGreetingBytes - have;
  if (have < kProofHeaderBytes) return kProofHeaderBytes - have;
  return kProofHeaderBytes + proof_length(connection.received) - have;
}

}  // namespace

struct Listener::Impl {
  using Place = PendingConnections::Place;

  const std::shared_ptr<Prover> prover;
  std::chrono::milliseconds patience;
  std::chrono::milliseconds silence;  // an agent speaks at once; its proof may take longer
  std::vector<base::UniqueFd> listening;
  EventLoop loop;
  PendingConnections pending;
  std::uint64_t next_number = 0;
  std::vector<Connection> proven;
  std::unique_ptr<ProofThread> thread;  // where the prover is slow
  bool accepting = false;
  Clock::time_point pause_until;  // of accepting
  struct LogLimit {
    Clock::time_point again;
    int unlogged = 0;
  };
  LogLimit of_strangers;
  LogLimit of_proofs;  // that do not hold: these lines tell users what to correct

  Impl(std::shared_ptr<Prover> given, std::vector<base::UniqueFd> sockets, std::chrono::milliseconds limit,
       std::chrono::milliseconds limit_of_silence)
      : prover(std::move(given)), patience(limit), silence(limit_of_silence), listening(std::move(sockets)) {
    if (!prover->slow()) return;
    thread = std::make_unique<ProofThread>(prover);
    loop.watch(thread->fd(), [this] {
      for (const ProofVerdict& verdict : thread->take()) {
        if (const auto place = pending.find(verdict.number)) follow(*place, verdict);
      }
    });
  }

  void accept_again() {
    if (accepting || Clock::now() < pause_until) return;
    for (const base::UniqueFd& socket : listening) {
      loop.watch(socket.get(), [this, fd = socket.get()] { accept_some(fd); });
    }
    accepting = !listening.empty();
  }
  void stop_accepting() {
    if (!accepting) return;
    for (const base::UniqueFd& socket : listening) loop.forget(socket.get());
    accepting = false;
  }
  void accept_some(int fd);
  /// @return whether there may be a descriptor now
  bool make_room(int fd, int number);
  void add(base::UniqueFd socket);
  void read(Place place);
  void take_greeting(PendingConnection& connection) const;
  void take_proof(Place place);
  void follow(Place place, const ProofVerdict& verdict);
  void drop(Place place, const std::string& why) { drop(place, why, of_strangers); }
  void drop_late(Place place);
  void drop(Place place, const std::string& why, LogLimit& limit);
  static void log_drop(const std::string& peer, const std::string& why, LogLimit& limit);
  /// Who is to be given up next, and when. There must be one.
  std::pair<Place, Clock::time_point> next_late() {
    const Place oldest = pending.oldest();
    const Clock::time_point late = oldest->since + patience;
    const auto silent = pending.oldest_silent();
    if (!silent || (*silent)->since + silence >= late) return {oldest, late};
    return {*silent, (*silent)->since + silence};
  }
};

void Listener::Impl::accept_some(int fd) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    base::UniqueFd socket{::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (socket) {
      if (!pending.empty() && pending.size() >= max_pending())
        drop(pending.most_crowding(), "others wait, and it has not authenticated");
      add(std::move(socket));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!make_room(fd, errno)) return;
    }  // else it has gone already
  }
}

bool Listener::Impl::make_room(int fd, int number) {
  if (!base::client_waits(fd)) return false;
  const std::string cause = fmt::format("{} [{}]", base::errno_text(number), base::errno_name(number));
  if (!pending.empty() && pending.share_of(pending.most_crowding()) >= kCrowd) {
    drop(pending.most_crowding(), cause);
    return true;
  }
  log_drop("an agent", cause + "; it will be tried again", of_strangers);
  stop_accepting();
  pause_until = Clock::now() + kDescriptorPause;
  return false;
}

void Listener::Impl::add(base::UniqueFd socket) {
  sockaddr_storage address{};
  try {
    address = peer_address(socket.get());
  } catch (const Error&) {
    return;  // it has gone already
  }
  const int fd = socket.get();
  const Place place = pending.add({.socket = std::move(socket),
                                   .peer = to_text(address),
                                   .source = base::source_of(address),
                                   .since = Clock::now(),
                                   .number = next_number++});
  loop.watch(fd, [this, place] { read(place); });
}

void Listener::Impl::read(Place place) {
  try {
    for (std::size_t due = bytes_due(*place); due > 0; due = bytes_due(*place)) {
      Bytes& received = place->received;
      const std::size_t before = received.size();
      received.resize(before + due);
      const ssize_t size = ::recv(place->socket.get(), received.data() + before, due, MSG_DONTWAIT);
      const int number = errno;
      received.resize(before + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
      if (size < 0 && number == EINTR) continue;
      if (size < 0 && (number == EAGAIN || number == EWOULDBLOCK)) return;
      if (size <= 0) return drop(place, "it disconnected before authenticating");
      if (!place->theirs) take_greeting(*place);
    }
  } catch (const Error& error) {
    return drop(place, error.cause());
  }
  take_proof(place);
}

void Listener::Impl::take_greeting(PendingConnection& connection) const {
  connection.theirs = parse_greeting(connection.received);
  if (!connection.theirs) return;
  connection.received.clear();
  connection.key.emplace();
  connection.ours = {.version = kProtocolVersion, .key = connection.key->public_key()};
  const bool same = connection.theirs->version == kProtocolVersion;
  Bytes answer;
  const auto append = [&answer](const auto& bytes) { answer.insert(answer.end(), bytes.begin(), bytes.end()); };
  append(encode(connection.ours));
  if (same) append(encode(prover->announcement()));
  send_answer(connection.socket.get(), answer);
  if (!same) {
    refuse("accepting an agent", fmt::format("it speaks version {} of ddprun's protocol; this is version {}",
                                             connection.theirs->version, kProtocolVersion));
  }
}

void Listener::Impl::take_proof(Place place) {
  loop.forget(place->socket.get());
  const auto statement = [&](HandshakeSide side) {
    return make_statement(side, *place->theirs, place->ours, prover->announcement());
  };
  ProofCheck check{.number = place->number,
                   .proof = {place->received.begin() + kProofHeaderBytes, place->received.end()},
                   .theirs = statement(HandshakeSide::connecting),
                   .ours = statement(HandshakeSide::accepting)};
  if (thread) {
    place->being_checked = true;
    thread->ask(std::move(check));
  } else {
    follow(place, judge(*prover, check));
  }
}

void Listener::Impl::follow(Place place, const ProofVerdict& verdict) {
  if (!verdict.refusal.empty()) return drop(place, verdict.refusal, of_proofs);
  try {
    send_answer(place->socket.get(), with_length(verdict.own_proof));
    SessionCipher cipher = place->key->agree(HandshakeSide::accepting, place->theirs->key);
    proven.emplace_back(std::move(place->socket), std::move(place->peer), std::move(cipher));
    pending.erase(place);
  } catch (const Error& error) {
    drop(place, error.cause());
  }
}

void Listener::Impl::drop(Place place, const std::string& why, LogLimit& limit) {
  log_drop(place->peer, why, limit);
  if (place->being_checked) thread->forget(place->number);
  loop.forget(place->socket.get());
  pending.erase(place);
}

void Listener::Impl::drop_late(Place place) {
  const double seconds = std::chrono::duration<double>(patience).count();
  if (place->being_checked) {
    drop(place, fmt::format("its proof could not be checked within {} s; does munged on this host hang?", seconds),
         of_proofs);
  } else {
    const bool silent = !place->theirs && place->received.empty();
    drop(place, silent ? std::string("it says nothing") : fmt::format("it did not authenticate within {} s", seconds));
  }
}

void Listener::Impl::log_drop(const std::string& peer, const std::string& why, LogLimit& limit) {
  if (Clock::now() < limit.again) {
    ++limit.unlogged;
    return;
  }
  const std::string more =
      limit.unlogged > 0 ? fmt::format(" (and {} more since the last such line)", limit.unlogged) : "";
  base::log(base::LogLevel::warning, "refused a connection from {}: {}{}", peer, why, more);
  limit = {.again = Clock::now() + kLogPause, .unlogged = 0};
}

Listener::Listener(const std::vector<std::string>& addresses, std::uint16_t port, std::shared_ptr<Prover> prover,
                   std::chrono::milliseconds patience, std::chrono::milliseconds silence)
    : impl_(
          std::make_unique<Impl>(std::move(prover), listening_sockets_somewhere(addresses, port), patience, silence)) {
  impl_->accept_again();
}

Listener::Listener(const std::string& address, std::uint16_t port, const Secret& secret,
                   std::chrono::milliseconds patience, std::chrono::milliseconds silence)
    : Listener(std::vector{address}, port, job_secret_prover(secret), patience, silence) {}

Listener::~Listener() = default;

std::uint16_t Listener::port() const {
  return impl_->listening.empty() ? 0 : base::local_port(impl_->listening.front().get());
}

std::vector<std::string> Listener::addresses() const {
  std::vector<std::string> texts;
  for (const base::UniqueFd& socket : impl_->listening) texts.push_back(to_text(local_address(socket.get())));
  return texts;
}

std::vector<int> Listener::fds() const {
  return impl_->listening.empty() ? std::vector<int>{} : std::vector<int>{impl_->loop.fd()};
}

std::vector<Connection> Listener::accept_ready() {
  if (impl_->listening.empty()) return {};
  const Clock::time_point now = Clock::now();
  while (!impl_->pending.empty()) {
    const auto [place, late] = impl_->next_late();
    if (late > now) break;
    impl_->drop_late(place);
  }
  impl_->accept_again();
  impl_->loop.run_once(Deadline{now});
  return std::exchange(impl_->proven, {});
}

std::optional<Deadline> Listener::next_deadline() const {
  if (impl_->listening.empty()) return std::nullopt;
  std::optional<Deadline> next;
  if (!impl_->pending.empty()) next = Deadline{impl_->next_late().second};
  if (!impl_->accepting) {
    const Deadline again{impl_->pause_until};
    next = next ? earlier(*next, again) : again;
  }
  return next;
}

void Listener::close() {
  impl_->pending.clear([this](const PendingConnection& connection) { impl_->loop.forget(connection.socket.get()); });
  impl_->stop_accepting();
  impl_->listening.clear();
}

}  // namespace ddp::launcher::control
