// How the connections of a mesh come and go: the lower rank of a pair connects, and the higher one only after a while
// without a connection, so that it notices if the other never will. Also reports connections that break.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "collectives/tcp/context.hpp"
#include "collectives/tcp/mesh.hpp"

namespace ddp::collectives::tcp {
namespace {

// Each of the higher rank's attempts that meets the lower's own doubles its wait, up to so many times: a lower rank
// that is slow to answer is not asked ever again, and who dies is missed within a second all the same.
constexpr int kLongestWait = 4;
constexpr std::chrono::milliseconds kBetweenAttempts{20};
// How long a failed rank continues answering those that it has not been connected with.
constexpr std::chrono::milliseconds kLinger{500};
// How long it waits for a rank whose socket is full, with what both were doing, to read on.
constexpr std::chrono::seconds kNotify{2};

}  // namespace

TcpMesh::Peer& TcpMesh::need(int rank) {
  auto& peer = peers_[static_cast<std::size_t>(rank)];
  if (!peer) {
    LinkOwner& owner = *this;  // the base is private
    peer = std::make_unique<Peer>(rank, owner);
    peer->wait_for_lower = config_.wait_for_lower;
    peer->next_attempt =
        Deadline::after(config_.rank < rank ? std::chrono::milliseconds::zero() : config_.wait_for_lower);
    opening_.push_back(peer.get());
  }
  return *peer;
}

void TcpMesh::admit() {
  for (Admission::Proven& proven : admission_->advance()) {
    Peer& peer = need(proven.rank);
    if (peer.state != Peer::State::opening) continue;
    const bool crossed = peer.outbound && config_.rank < proven.rank;
    const Verdict verdict = crossed ? Verdict::crossed : Verdict::welcome;
    if (::send(proven.socket.get(), &verdict, sizeof verdict, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof verdict) continue;
    if (!crossed) open(peer, std::move(proven.socket));
  }
}

void TcpMesh::advance_opening() {
  for (std::size_t i = opening_.size(); i-- > 0;) {
    if (i >= opening_.size()) continue;  // the list may have become shorter
    Peer& peer = *opening_[i];
    const int rank = peer.link.rank();
    if (!peer.outbound) {
      if (!peer.next_attempt.expired()) continue;
      peer.outbound = std::make_unique<Outbound>(*identity_, rank, config_.interface_address);
      peer.ready = true;
      if (!peer.give_up) peer.give_up = Deadline::after(config_.connect_timeout);
      if (peer.outbound->fd() >= 0) {
        probes_.attempt(peer.outbound->fd());
        epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.u64 = static_cast<std::uint64_t>(rank)}};
        peer.unwatched = ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, peer.outbound->fd(), &event) != 0;
      }
    }
    if (!std::exchange(peer.ready, peer.unwatched) && !(peer.give_up && peer.give_up->expired())) continue;
    const Outbound::State state = peer.outbound->advance();
    if (peer.outbound->reached()) peer.give_up.reset();
    if (state == Outbound::State::pending && !(peer.give_up && peer.give_up->expired())) continue;
    const std::unique_ptr<Outbound> outbound = std::move(peer.outbound);
    const int error = outbound->error();
    switch (state) {
      case Outbound::State::welcome: {
        base::UniqueFd socket = outbound->take();
        ::epoll_ctl(poller_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
        open(peer, std::move(socket));
        break;
      }
      case Outbound::State::crossed:
        peer.next_attempt = Deadline::after(peer.wait_for_lower);
        peer.wait_for_lower = std::min(2 * peer.wait_for_lower, kLongestWait * config_.wait_for_lower);
        break;
      case Outbound::State::gone:
        mark_lost(peer, fmt::format("rank {} has ended, or left the group: {}", rank, outbound->problem()),
                  error == 0 ? "" : base::errno_name(error));
        break;
      case Outbound::State::no_socket:
        peer.problem = outbound->problem();
        peer.next_attempt = Deadline::after(kBetweenAttempts);
        if (!peer.give_up || !peer.give_up->expired()) break;
        mark_lost(peer,
                  fmt::format("rank {} has no socket for its connection to rank {}: {}; raise the limit of open files "
                              "(ulimit -n), which may be the host's",
                              config_.rank, rank, peer.problem),
                  base::errno_name(error), config_.rank);
        break;
      case Outbound::State::broken:
        peer.problem = outbound->problem();
        peer.next_attempt = Deadline::after(kBetweenAttempts);
        if (!peer.give_up || !peer.give_up->expired()) break;
        [[fallthrough]];
      case Outbound::State::pending:
        mark_lost(peer,
                  fmt::format("rank {} at {} cannot be reached: {}", rank, identity_->record(rank).address,
                              peer.problem.empty() ? "no answer" : peer.problem),
                  base::errno_name(error == 0 ? ETIMEDOUT : error));
        break;
    }
  }
}

void TcpMesh::open(Peer& peer, base::UniqueFd socket) {
  probes_.opened(identity_->record(peer.link.rank()).address, socket.get());
  std::erase(opening_, &peer);
  peer.outbound.reset();
  peer.state = Peer::State::open;
  peer.link.open(std::move(socket));
  open_.push_back(&peer);
  if (failure_) {
    peer.link.drop();
    notify(peer);
  }
  watch(peer.link);
  peer.link.flush();
  if (open_.size() + 1 == peers_.size()) admission_->close();
}

void TcpMesh::ended(int rank, int error, bool garbage) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  if (peer.link.watched != 0) ::epoll_ctl(poller_.get(), EPOLL_CTL_DEL, peer.link.fd(), nullptr);
  peer.link.watched = 0;
  probes_.closed(identity_->record(rank).address, peer.link.fd());
  std::erase(open_, &peer);
  if (peer.said_goodbye && !garbage) {
    peer.state = Peer::State::left;
    const bool awaited = peer.link.expected() != nullptr || peer.link.transfers_due != 0 || peer.link.sends();
    if (awaited) mark_lost(peer, fmt::format("rank {} has left the group", rank), {});
  } else if (garbage) {
    mark_lost(peer, fmt::format("rank {} sent malformed data; do all ranks run the same version of libddp?", rank), {});
  } else {
    mark_lost(peer,
              fmt::format("the connection to rank {} {}", rank,
                          error == 0 ? "was closed by its end" : "broke: " + base::errno_text(error)),
              error == 0 ? "" : base::errno_name(error));
  }
  peer.link.close();
}

void TcpMesh::mark_lost(Peer& peer, std::string cause, std::string native, std::optional<int> culprit) {
  std::erase(opening_, &peer);
  peer.state = Peer::State::lost;
  fail({.outcome = Outcome::peers_failed,
        .ranks = {culprit.value_or(peer.link.rank())},
        .cause = std::move(cause),
        .native = std::move(native)},
       -1);
}

void TcpMesh::fail_mismatch(int rank, std::string cause, std::optional<UnfitMessage> message) {
  fail({.outcome = Outcome::mismatch, .ranks = {rank}, .cause = std::move(cause), .message = std::move(message)}, rank);
}

void TcpMesh::report(std::vector<int> ranks, std::string cause) {
  fail({.outcome = Outcome::peers_failed, .ranks = std::move(ranks), .cause = std::move(cause)}, -1);
  if (trouble_) drain();
}

void TcpMesh::give_up(Outcome outcome, std::vector<int> ranks, std::string cause) {
  if (trouble_) conclude();  // the others are to know
  if (failure_) return;
  failure_ = {.outcome = outcome, .ranks = std::move(ranks), .cause = std::move(cause)};
  for (auto& peer : peers_) {
    if (peer) peer->link.drop();
  }
}

/// The first counts.
void TcpMesh::fail(MeshFailure failure, int counterpart) {
  if (failure_ || trouble_) return;
  trouble_ = std::move(failure);
  counterpart_ = counterpart;
}

void TcpMesh::conclude() {
  failure_ = std::exchange(trouble_, std::nullopt);
  linger_until_ = Deadline::after(kLinger);
  notify_until_ = Deadline::after(kNotify);
  for (auto& peer : peers_) {
    if (!peer) continue;
    peer->link.drop();
    peer->current = nullptr;
    if (peer->state == Peer::State::open) notify(*peer);
  }
}

/// The other rank of a mismatch is told of this one, all others of both.
void TcpMesh::notify(Peer& peer) {
  if (failure_->outcome != Outcome::peers_failed && failure_->outcome != Outcome::mismatch) return;
  FailureNotice notice{.outcome = failure_->outcome, .ranks = failure_->ranks, .cause = failure_->cause};
  if (counterpart_ >= 0) {
    notice.ranks = {config_.rank};
    if (peer.link.rank() != counterpart_) notice.ranks.push_back(counterpart_);
    std::sort(notice.ranks.begin(), notice.ranks.end());
  }
  peer.link.enqueue_own({.kind = FrameKind::failure}, encode(notice));
  peer.link.flush();
}

std::string TcpMesh::missing() const {
  std::vector<int> ranks;
  std::string problem;
  for (const Peer* peer : opening_) {
    ranks.push_back(peer->link.rank());
    if (problem.empty()) problem = peer->problem;
  }
  if (ranks.empty()) return {};
  std::sort(ranks.begin(), ranks.end());
  return fmt::format("; not connected: {}{}{}", format_ranks(ranks), problem.empty() ? "" : ": ", problem);
}

}  // namespace ddp::collectives::tcp
