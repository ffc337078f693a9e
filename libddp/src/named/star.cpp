#include "named/star.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/message.hpp"
#include "base/socket.hpp"
#include "collectives/group_calls.hpp"
#include "collectives/group_engine.hpp"
#include "collectives/tcp/handshake.hpp"

namespace ddp::named {
namespace {

using collectives::GroupEngine;
namespace tcp = collectives::tcp;

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kMostBytes = std::size_t{1} << 28U;  // of a message: the names of 50,000 operations
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::chrono::milliseconds kBetweenAttempts{20};
constexpr std::chrono::seconds kLastWords{1};

Bytes framed(std::span<const std::byte> message) {
  Bytes frame(kLengthBytes + message.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) frame[i] = static_cast<std::byte>(message.size() >> (8 * i) & 0xffU);
  std::copy(message.begin(), message.end(), frame.begin() + kLengthBytes);
  return frame;
}

std::size_t length_of(std::span<const std::byte> frame) {
  std::size_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8U | std::to_integer<std::size_t>(frame[i]);
  return length;
}

constexpr auto kAttempted = "connecting ranks for named operations";

}  // namespace

/// Rank 0's, while others come.
class Star::Listener {
 public:
  explicit Listener(const std::string& address) : admission(address) {}
  tcp::Admission admission;
};

Star::Star(ProcessGroup& group) {
  if (group.size() == 1) return;
  GroupEngine& engine = GroupEngine::of(group);
  // Others prove themselves by their secrets, but do not listen: a port that nobody asks for.
  tcp::RankRecord own{.address = engine.connect_options().interface_address, .port = 1, .secret = tcp::random_key()};
  if (own.address.empty()) own.address = "127.0.0.1";
  if (group.rank() == 0) {
    listener_ = std::make_unique<Listener>(own.address);
    own.port = listener_->admission.port();
  }
  const std::vector<Bytes> records = collectives::all_gather_bytes(group, base::encode(own));
  group.rank() == 0 ? accept_all(group, records) : reach_first(group, records);
}

Star::~Star() { end(); }

void Star::accept_all(ProcessGroup& group, const std::vector<Bytes>& records) {
  const tcp::MeshIdentity identity(0, records);
  listener_->admission.begin(identity);
  connections_.resize(static_cast<std::size_t>(group.size()) - 1);
  const Deadline deadline = Deadline::after(GroupEngine::of(group).connect_options().timeout);
  for (std::size_t missing = connections_.size(); missing > 0;) {
    if (deadline.expired()) {
      std::vector<int> absent;
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        if (!connections_[i]) absent.push_back(group.global_ranks()[i + 1]);
      }
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = kAttempted,
                   .cause = "no connection came from them",
                   .ranks = std::move(absent)}};
    }
    base::wait_for(listener_->admission.fd(), POLLIN,
                   earlier(deadline, Deadline::after(std::chrono::milliseconds(50))));
    for (tcp::Admission::Proven& proven : listener_->admission.advance()) {
      auto& place = connections_.at(static_cast<std::size_t>(proven.rank) - 1);
      constexpr auto kWelcome = tcp::Verdict::welcome;
      if (::send(proven.socket.get(), &kWelcome, sizeof kWelcome, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof kWelcome)
        continue;
      if (!place) --missing;
      place = std::make_unique<Connection>();  // the newest: an earlier attempt has been given up
      place->rank = proven.rank;
      place->socket = base::UnsharedFd(std::move(proven.socket));
    }
  }
  listener_.reset();
}

void Star::reach_first(ProcessGroup& group, const std::vector<Bytes>& records) {
  GroupEngine& engine = GroupEngine::of(group);
  const tcp::MeshIdentity identity(group.rank(), records);
  const Deadline deadline = Deadline::after(engine.connect_options().timeout);
  const std::string from = engine.connect_options().interface_address;
  for (;;) {
    tcp::Outbound attempt(identity, 0, from.empty() ? "127.0.0.1" : from);
    auto state = tcp::Outbound::State::pending;
    while ((state = attempt.advance()) == tcp::Outbound::State::pending && !deadline.expired()) {
      const Deadline soon = earlier(deadline, Deadline::after(std::chrono::milliseconds(50)));
      base::wait_for(attempt.fd(), attempt.reached() ? POLLIN : POLLOUT, soon);
    }
    if (state == tcp::Outbound::State::welcome) {
      connections_.push_back(std::make_unique<Connection>());
      connections_.back()->socket = base::UnsharedFd(attempt.take());
      return;
    }
    if (state == tcp::Outbound::State::gone || deadline.expired()) {
      throw Error{{.code = deadline.expired() ? ErrorCode::timeout : ErrorCode::peer_lost,
                   .attempted = kAttempted,
                   .cause = attempt.problem().empty() ? "rank 0 does not answer" : attempt.problem(),
                   .native = attempt.error() == 0 ? "" : base::errno_name(attempt.error()),
                   .ranks = {group.global_ranks().front()}}};
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

void Star::begin(StarUser& user) {
  user_ = &user;
  for (const auto& connection : connections_) base::keep_alive(connection->socket.get());
  thread_ = base::start_thread([this] { run(); });
}

void Star::send(int rank, std::span<const std::byte> message) {
  const auto place = std::find_if(connections_.begin(), connections_.end(),
                                  [rank](const auto& connection) { return connection->rank == rank; });
  if (place == connections_.end()) return;
  const std::lock_guard lock((*place)->mutex);
  const bool idle = (*place)->outgoing.empty();
  (*place)->outgoing.push_back(framed(message));
  if (idle && !flush(**place)) wake();
}

/// With its mutex. @return whether nothing is left to send.
bool Star::flush(Connection& connection) {
  while (!connection.outgoing.empty()) {
    const Bytes& first = connection.outgoing.front();
    const ssize_t sent = ::send(connection.socket.get(), first.data() + connection.sent, first.size() - connection.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (sent < 0) {  // the thread sees the end of the connection
      connection.outgoing.clear();
      connection.sent = 0;
      return true;
    }
    connection.sent += static_cast<std::size_t>(sent);
    if (connection.sent < first.size()) continue;
    connection.outgoing.pop_front();
    connection.sent = 0;
  }
  return true;
}

bool Star::is_waiting(Connection& connection) {
  const std::lock_guard lock(connection.mutex);
  return !connection.outgoing.empty();
}

void Star::receive(Connection& connection) {
  std::string cause = "it closed the connection";
  for (;;) {
    const std::size_t before = connection.incoming.size();
    connection.incoming.resize(before + kReadBytes);
    const ssize_t got = ::recv(connection.socket.get(), connection.incoming.data() + before, kReadBytes, MSG_DONTWAIT);
    const int error = errno;
    connection.incoming.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 && static_cast<std::size_t>(got) == kReadBytes) continue;
    if (got > 0 || (got < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR))) break;
    if (got < 0) cause = base::errno_text(error);
    connection.open = false;
    break;
  }
  std::size_t at = 0;
  try {
    while (connection.incoming.size() - at >= kLengthBytes) {
      const std::span<const std::byte> rest = std::span(connection.incoming).subspan(at);
      const std::size_t length = length_of(rest);
      if (length > kMostBytes) throw Error{{.code = ErrorCode::protocol, .cause = "it sent no message"}};
      if (rest.size() < kLengthBytes + length) break;
      const auto message = rest.subspan(kLengthBytes, length);
      at += kLengthBytes + length;
      user_->arrived(connection.rank, Bytes(message.begin(), message.end()));
    }
  } catch (const std::exception& problem) {
    cause = problem.what();
    connection.open = false;
  }
  connection.incoming.erase(connection.incoming.begin(), connection.incoming.begin() + static_cast<std::ptrdiff_t>(at));
  if (!connection.open) user_->lost(connection.rank, cause);
}

void Star::run() {
  std::optional<Deadline> next;
  std::optional<Deadline> last;  // once it is to end
  std::vector<pollfd> entries;
  for (;;) {
    entries.assign(1, {.fd = wake_.fd(), .events = POLLIN, .revents = 0});
    bool unsent = false;
    for (const auto& connection : connections_) {
      const bool waits = connection->open && is_waiting(*connection);
      unsent = unsent || waits;
      entries.push_back({.fd = connection->open ? connection->socket.get() : -1,
                         .events = static_cast<short>(waits ? POLLIN | POLLOUT : POLLIN),
                         .revents = 0});
    }
    if (ending_ && !last) last = Deadline::after(kLastWords);
    if (last && (!unsent || last->expired())) return;
    const std::optional<Deadline> limit = last ? last : next;
    ::poll(entries.data(), entries.size(), limit ? limit->poll_timeout_ms() : -1);
    wake_ups_.fetch_add(1, std::memory_order_relaxed);
    if (entries.front().revents != 0) wake_.clear();
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      Connection& connection = *connections_[i];
      if (connection.open && (entries[i + 1].revents & POLLOUT) != 0) {
        const std::lock_guard lock(connection.mutex);
        flush(connection);
      }
      if (connection.open && (entries[i + 1].revents & ~POLLOUT) != 0) receive(connection);
    }
    next = user_->round();
  }
}

void Star::end() noexcept {
  if (!thread_.joinable()) return;
  if (::getpid() != process_) return thread_.detach();  // it is the parent's
  ending_ = true;
  wake();
  thread_.join();
}

}  // namespace ddp::named
