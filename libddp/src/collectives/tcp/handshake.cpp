#include "collectives/tcp/handshake.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/message.hpp"
#include "base/socket.hpp"

namespace ddp::collectives::tcp {
namespace {

static_assert(crypto_auth_KEYBYTES == sizeof(Key));

Key digest(std::span<const std::byte> text) {
  Key key{};
  ::crypto_generichash(reinterpret_cast<unsigned char*>(key.data()), key.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return key;
}

}  // namespace

Key random_key() {
  stream::ensure_sodium();
  Key key{};
  ::randombytes_buf(key.data(), key.size());
  return key;
}

// ---- who is proven

MeshIdentity::MeshIdentity(int rank, const std::vector<Bytes>& records) : rank_(rank) {
  stream::ensure_sodium();
  base::ByteWriter all;
  for (std::size_t i = 0; i < records.size(); ++i) {
    try {
      records_.push_back(base::decode<RankRecord>(records[i]));
    } catch (const Error& error) {
      ErrorDetail detail = error.detail();
      detail.ranks = {static_cast<int>(i)};
      throw Error{std::move(detail)};
    }
    all.blob(records[i]);
  }
  mesh_ = digest(all.bytes());
}

std::shared_ptr<stream::Prover> MeshIdentity::prover(const Opening& opening) const {
  const auto [lower, higher] = std::minmax(opening.from, opening.to);
  const Key key = digest(base::ByteWriter{}
                             .text("libddp pair of ranks")
                             .raw(records_[lower].secret)
                             .raw(records_[higher].secret)
                             .raw(mesh_)
                             .bytes());
  return stream::job_secret_prover(
      stream::Secret::of(std::span<const std::uint8_t, 32>{reinterpret_cast<const std::uint8_t*>(key.data()), 32}));
}

std::unique_ptr<stream::Handshake> MeshIdentity::accept() const {
  return std::make_unique<stream::Handshake>(kProtocol, [this](std::span<const std::byte> bytes) {
    const Opening opening = base::decode<Opening>(bytes);
    const auto own = static_cast<std::uint32_t>(rank_);
    if (opening.to == own && opening.from != own && opening.from < records_.size()) return prover(opening);
    throw Error{{.code = ErrorCode::conflict, .attempted = "accepting a rank", .cause = "it looks for another rank"}};
  });
}

std::unique_ptr<stream::Handshake> MeshIdentity::connect(int to) const {
  const Opening opening{.from = static_cast<std::uint32_t>(rank_), .to = static_cast<std::uint32_t>(to)};
  return std::make_unique<stream::Handshake>(kProtocol, base::encode(opening),
                                             [this, opening](const stream::Announcement&) { return prover(opening); });
}

// ---- the accepting side

Admission::Admission(const std::string& address)
    : listener_(base::UnsharedFd{base::listen_tcp(address)}), port_(base::local_port(listener_.get())) {}

void Admission::begin(const MeshIdentity& identity) {
  std::vector<base::UniqueFd> sockets;
  sockets.push_back(listener_.release());
  const stream::StrangerLimits limits{.most = kMostStrangers + static_cast<std::size_t>(identity.size())};
  door_.emplace(loop_, std::move(sockets), limits,
                stream::Admission::Handlers{
                    .greet = [&identity](int) { return identity.accept(); },
                    .proven =
                        [this](base::UnsharedFd socket, const sockaddr_storage&, auto conversation) {
                          const auto& handshake = static_cast<const stream::Handshake&>(*conversation);
                          const auto rank = static_cast<int>(base::decode<Opening>(handshake.opening()).from);
                          proven_.push_back({.rank = rank, .socket = socket.release()});
                        }});
}

std::vector<Admission::Proven> Admission::advance() {
  if (door_) loop_.run_once(Deadline{Deadline::Clock::now()});
  return std::exchange(proven_, {});
}

void Admission::close() noexcept {
  if (door_) door_->close();
  listener_.reset();
}

// ---- the connecting side

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
  handshake_ = identity_->connect(to_);
  return State::pending;
}

Outbound::State Outbound::shake_hands() {
  try {
    switch (stream::advance(socket_.get(), *handshake_)) {
      case stream::Progress::proven: return State::welcome;
      case stream::Progress::gone: return fail(State::broken, "it closed the connection before its welcome", errno);
      default: return State::pending;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_lost) return fail(State::broken, "it closed the connection");
    return fail(State::gone, "the process listening at its address is not a member of the group: " + error.cause());
  }
}

Outbound::State Outbound::advance() {
  if (!handshake_) {
    const State state = finish_connecting();
    if (state != State::pending || !handshake_) return state;
  }
  if (!handshake_->proven()) {
    if (const State state = shake_hands(); state != State::welcome) return state;
  }
  Verdict verdict{};
  ssize_t got = -1;
  do {
    got = ::recv(socket_.get(), &verdict, sizeof verdict, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::pending;
  if (got <= 0) return fail(State::broken, "it closed the connection before its welcome", got < 0 ? errno : 0);
  if (verdict == Verdict::welcome) return State::welcome;
  if (verdict == Verdict::crossed) return fail(State::crossed, "it connects to this rank");
  return fail(State::broken, "it gave no welcome");
}

}  // namespace ddp::collectives::tcp
