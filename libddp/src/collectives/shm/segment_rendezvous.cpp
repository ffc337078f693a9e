#include "collectives/shm/segment_rendezvous.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::collectives::shm {
namespace {

using Kind = JoinMessage::Kind;
constexpr auto kSharing = "sharing memory with the ranks of a group";

[[noreturn]] void fail(ErrorCode code, std::string cause, std::vector<int> ranks, std::string hint = {}) {
  throw Error{{.code = code,
               .attempted = kSharing,
               .cause = std::move(cause),
               .native = code == ErrorCode::timeout ? base::errno_name(ETIMEDOUT) : "",
               .ranks = std::move(ranks),
               .hint = std::move(hint)}};
}

bool equal(const Secret& a, const Secret& b) {
  unsigned difference = 0;  // constant time, wherever they differ
  for (std::size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

JoinMessage failure_message(int rank, const Error& error) {
  JoinMessage message{.kind = Kind::failed, .rank = rank};
  message.code = error.code();
  message.ranks = error.ranks();
  message.text = error.cause();
  return message;
}

class Leader {
 public:
  Leader(const Rendezvous& rendezvous, Deadline deadline)
      : rendezvous_(rendezvous), deadline_(deadline), members_(rendezvous.addresses.size()) {}

  void run() {
    try {
      collect();
      offer();
      await_ready();
    } catch (const Error& error) {
      try {
        tell_all(failure_message(0, error));
      } catch (const Error&) {  // for example out of descriptors: the first error is the one to report
      }
      throw;
    }
    rendezvous_.hook(Phase::connecting);
    for (const Member& member : members_) {
      if (member.socket) send(member.socket.get(), {.kind = Kind::go});
    }
  }

 private:
  struct Member {
    base::UniqueFd socket;
    bool ready = false;
  };
  struct Unknown {
    base::UniqueFd socket;
    Deadline limit = Deadline::after(kSilence);
  };
  /// Silent strangers are disconnected after this time, or when more than kUnknown wait.
  static constexpr std::chrono::seconds kSilence{5};
  static constexpr std::size_t kUnknown = 64;
  /// Time between two checks for ranks that have not joined.
  static constexpr int kLookMs = 50;
  /// A leader that gives up waits this long for late ranks, so that they learn the reason. Ranks that come later find
  /// no leader, and can only report that.
  static constexpr std::chrono::seconds kFarewell{2};

  std::vector<int> missing(bool ready) const {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      if (ready ? !members_[rank].ready : !members_[rank].socket) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  /// Waits briefly until a socket is readable.
  void wait(std::vector<pollfd> sockets) const {
    const int count = ::poll(sockets.data(), sockets.size(), std::min(deadline_.poll_timeout_ms(), kLookMs));
    if (count < 0 && errno != EINTR) throw base::system_error(kSharing, errno);
  }
  std::vector<pollfd> pending() const {
    std::vector<pollfd> sockets{{rendezvous_.endpoint.listener(), POLLIN, 0}};
    for (const Unknown& unknown : unknown_) sockets.push_back({unknown.socket.get(), POLLIN, 0});
    return sockets;
  }

  /// @param listening whether to also wait for new connections
  void wait(bool listening, bool ready) {
    std::vector<pollfd> sockets;
    if (listening) sockets = pending();
    for (const Member& member : members_) {
      if (member.socket) sockets.push_back({member.socket.get(), POLLIN, 0});
    }
    wait(std::move(sockets));
    if (deadline_.expired()) {
      fail(ErrorCode::timeout, ready ? "they have not mapped the shared memory in time" : "they have not come in time",
           missing(ready));
    }
  }

  void collect() {
    while (!missing(false).empty()) {
      wait(true, false);
      accept_some();
      greet_all();
      check_members();
      check_missing();
    }
    unknown_.clear();
  }

  void greet_all() {
    for (std::size_t i = 0; i < unknown_.size();) {
      if (greet(unknown_[i].socket) || unknown_[i].limit.expired()) {
        unknown_.erase(unknown_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  /// Whether a rank that has not joined may still do so: its socket exists while it lives and may come.
  bool may_come(int rank) const {
    try {
      connect_to(rendezvous_.addresses[static_cast<std::size_t>(rank)]);
    } catch (const Error& error) {
      return error.code() != ErrorCode::peer_lost;  // such errors say nothing about the rank
    }
    return true;
  }

  void check_missing() {
    if (!next_look_.expired()) return;
    next_look_ = Deadline::after(std::chrono::milliseconds(kLookMs));
    std::vector<int> gone = missing(false);
    std::erase_if(gone, [this](int rank) { return may_come(rank); });
    if (gone.empty()) return;
    accept_some();  // it may have come meanwhile, and failed
    check_members();
    const std::string ranks = format_ranks(gone);
    fail(ErrorCode::peer_lost, fmt::format("{} ended before the ranks were connected", ranks), std::move(gone));
  }

  /// Tells the ranks that have joined, and late ones.
  void tell_all(const JoinMessage& failure) {
    std::vector<bool> told(members_.size());
    const Deadline limit = earlier(deadline_, Deadline::after(kFarewell));
    while (true) {
      for (std::size_t rank = 1; rank < members_.size(); ++rank) {
        if (!members_[rank].socket || told[rank]) continue;
        send(members_[rank].socket.get(), failure);
        told[rank] = true;
      }
      const std::vector<int> late = missing(false);
      if (limit.expired() || std::none_of(late.begin(), late.end(), [this](int rank) { return may_come(rank); }))
        return;
      wait(pending());
      accept_some();
      greet_all();
    }
  }

  void accept_some() {
    for (std::size_t i = 0; i < kUnknown; ++i) {  // new ones may arrive as fast
      base::UniqueFd socket(::accept4(rendezvous_.endpoint.listener(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
        const int error = errno;
        if (!base::client_waits(rendezvous_.endpoint.listener())) return;
        if ((error == EMFILE || error == ENFILE) && !unknown_.empty()) {
          unknown_.pop_front();
          continue;
        }
        throw base::system_error(kSharing, error, "raise the limit of open files (ulimit -n)");
      }
      if (!same_user(socket.get())) continue;
      if (unknown_.size() == kUnknown) unknown_.pop_front();
      unknown_.push_back({.socket = std::move(socket)});
    }
  }

  Member& member(const JoinMessage& hello) { return members_[static_cast<std::size_t>(hello.rank)]; }

  /// Whether the connection is no longer unknown: a member's, or closed.
  bool greet(base::UniqueFd& socket) {
    JoinMessage hello;
    const Received received = receive(socket.get(), hello);
    if (received == Received::nothing) return false;
    if (received != Received::message || hello.kind != Kind::hello || hello.rank == 0 ||
        hello.rank >= static_cast<int>(members_.size()) || member(hello).socket ||
        !equal(hello.secret, rendezvous_.endpoint.address().token)) {
      return true;
    }
    budget_ = std::min<std::size_t>(budget_, hello.bytes);
    member(hello).socket = std::move(socket);
    return true;
  }

  void check_members() {
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      Member& member = members_[rank];
      if (!member.socket) continue;
      JoinMessage message;
      const Received received = receive(member.socket.get(), message);
      if (received == Received::nothing) continue;
      if (received == Received::message && message.kind == Kind::ready) {
        member.ready = true;
        continue;
      }
      const int number = static_cast<int>(rank);
      member.socket.reset();
      if (received == Received::message && message.kind == Kind::failed) {
        fail(message.code, fmt::format("rank {}: {}", rank, message.text), {number});
      }
      fail(ErrorCode::peer_lost, fmt::format("rank {} ended while the ranks connected", rank), {number});
    }
  }

  void offer() {
    const int ranks = static_cast<int>(members_.size());
    const std::size_t region_bytes = choose_region_bytes(budget_, ranks);
    if (region_bytes == 0) {
      fail(ErrorCode::unavailable,
           fmt::format("the ranks' other groups use all of their shared memory: {} bytes are left, {} are needed",
                       budget_, SegmentLayout::smallest_region(ranks)),
           {}, "raise DDP_SHM_MIB, or let groups that are not needed end");
    }
    SharedSegment segment = SharedSegment::create({ranks, region_bytes});
    segment.view().group().proof = rendezvous_.endpoint.address().proof;
    segment.claim(0);
    const int file = segment.file();
    JoinMessage message{.kind = Kind::offer};
    message.secret = rendezvous_.endpoint.address().proof;
    message.bytes = region_bytes;
    message.first_step = rendezvous_.first_step;
    for (const Member& member : members_) {
      if (member.socket) send(member.socket.get(), message, file);  // a lost one is noticed below
    }
    rendezvous_.prepare(std::move(segment), rendezvous_.first_step);
  }

  void await_ready() {
    while (!missing(true).empty()) {
      wait(false, true);
      check_members();
    }
  }

  const Rendezvous& rendezvous_;
  Deadline deadline_;
  std::vector<Member> members_;  ///< by rank; 0 is this one
  std::deque<Unknown> unknown_;
  std::size_t budget_ = budget_left();
  Deadline next_look_ = Deadline::after(std::chrono::milliseconds(kLookMs));
};

class Member {
 public:
  Member(const Rendezvous& rendezvous, Deadline deadline) : rendezvous_(rendezvous), deadline_(deadline) {}

  void run() {
    JoinMessage offer;
    base::UniqueFd file;
    // A leader flooded by strangers may disconnect one of its own ranks.
    while (!ask(offer, file)) pause();
    if (!equal(offer.secret, leader().proof)) fail(ErrorCode::protocol, "another process answered for the leader", {0});
    try {
      SharedSegment segment =
          SharedSegment::open(std::move(file), {static_cast<int>(rendezvous_.addresses.size()), checked_bytes(offer)});
      if (!equal(segment.view().group().proof, leader().proof)) {
        fail(ErrorCode::protocol, "the shared memory is not the leader's", {0});
      }
      segment.claim(rendezvous_.rank);
      rendezvous_.prepare(std::move(segment), offer.first_step);
    } catch (const Error& error) {
      send(socket_.get(), failure_message(rendezvous_.rank, error));
      throw;
    }
    rendezvous_.hook(Phase::connecting);
    send(socket_.get(), {.kind = Kind::ready, .rank = rendezvous_.rank});
    JoinMessage go;
    if (next(go, nullptr) != Received::message || go.kind != Kind::go) {
      fail(ErrorCode::peer_lost, "the leader, rank 0, ended while the ranks connected", {0});
    }
  }

 private:
  const EndpointAddress& leader() const { return rendezvous_.addresses[0]; }

  std::size_t checked_bytes(const JoinMessage& offer) const {
    const int ranks = static_cast<int>(rendezvous_.addresses.size());
    if (offer.bytes % kPageBytes != 0 || offer.bytes < SegmentLayout::smallest_region(ranks) ||
        offer.bytes > (std::uint64_t{1} << 40U)) {
      fail(ErrorCode::protocol, fmt::format("the leader offers regions of {} bytes", offer.bytes), {0});
    }
    return offer.bytes;
  }

  void check_deadline() const {
    if (deadline_.expired()) {
      fail(ErrorCode::timeout, "the leader, rank 0, did not confirm in time that all ranks have joined", {});
    }
  }
  void pause() const {
    check_deadline();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  /// Whether the leader has answered.
  bool ask(JoinMessage& offer, base::UniqueFd& file) {
    socket_ = connect_to(leader());
    if (!socket_) return false;
    if (!same_user(socket_.get())) fail(ErrorCode::protocol, "another user listens at the leader's address", {0});
    JoinMessage hello{.kind = Kind::hello, .rank = rendezvous_.rank};
    hello.secret = leader().token;
    hello.bytes = budget_left();
    if (!send(socket_.get(), hello)) return false;
    const Received received = next(offer, &file);
    if (received == Received::no_descriptor) {
      const Error error = base::system_error("receiving the shared memory of a group", EMFILE,
                                             "raise the limit of open files of this process (ulimit -n)");
      send(socket_.get(), failure_message(rendezvous_.rank, error));
      throw error;
    }
    return received == Received::message && offer.kind == Kind::offer;
  }

  Received next(JoinMessage& message, base::UniqueFd* file) {
    while (true) {
      const Received received = receive(socket_.get(), message, file);
      if (received == Received::message && message.kind == Kind::failed) {
        fail(message.code, fmt::format("the leader, rank 0, gave up: {}", message.text), message.ranks);
      }
      if (received != Received::nothing) return received;
      base::wait_for(socket_.get(), POLLIN, deadline_);
      check_deadline();
    }
  }

  const Rendezvous& rendezvous_;
  Deadline deadline_;
  base::UniqueFd socket_;
};

}  // namespace

void meet(const Rendezvous& rendezvous, Deadline deadline) {
  for (std::size_t rank = 0; rank < rendezvous.addresses.size(); ++rank) {
    const std::string why =
        why_not_shared(rendezvous.addresses[rank], rendezvous.addresses[static_cast<std::size_t>(rendezvous.rank)]);
    if (!why.empty()) {
      fail(ErrorCode::unavailable, fmt::format("ranks {} and {} cannot: {}", rendezvous.rank, rank, why),
           {static_cast<int>(rank)});
    }
  }
  if (rendezvous.rank != 0) return Member(rendezvous, deadline).run();
  // A little before the other ranks, so that the leader can tell them which rank is missing.
  const auto left = deadline.remaining();
  const auto slack = std::min<std::chrono::milliseconds>(left / 10, std::chrono::milliseconds(500));
  Leader(rendezvous, Deadline(deadline.when() - slack)).run();
}

}  // namespace ddp::collectives::shm
