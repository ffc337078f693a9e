#include "collectives/tcp/mesh.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/message.hpp"
#include "collectives/tcp/context.hpp"

namespace ddp::collectives::tcp {
namespace {

// Up to this many connections are read without asking which have data.
constexpr std::size_t kFew = 8;
// Interval, in calls, of looking at all descriptors, which shows the end of ranks that nothing is expected from.
constexpr unsigned kLookEvery = 64;
// How long data that other ranks keep sending may delay giving up when a rank is lost.
constexpr std::chrono::milliseconds kDrain{200};

constexpr std::uint64_t kAdmissionTag = std::uint64_t{1} << 32U;
constexpr std::uint64_t kWakeTag = std::uint64_t{2} << 32U;

/// A group's descriptors besides its connections: listener, epoll, wake-up, shared memory.
constexpr std::size_t kOwnDescriptors = 8;

/// Raises the limit before the first connection is opened.
const MeshConfig& with_descriptors(const MeshConfig& config) {
  base::allow_open_files(kOwnDescriptors + static_cast<std::size_t>(config.size));
  return config;
}

/// @param what one of this rank's own descriptors; throws Error(system).
void watch_own(const base::UniqueFd& poller, int fd, std::uint64_t tag, const char* what) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = tag}};
  if (::epoll_ctl(poller.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  throw base::system_error(std::string("waiting for other ranks (epoll_ctl, ") + what + ")", errno);
}

}  // namespace

TcpMesh::TcpMesh(const MeshConfig& config)
    : config_(with_descriptors(config)),
      probes_(config.peer_timeout, config.size),
      poller_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!poller_) throw base::system_error("waiting for other ranks (epoll_create1)", errno);
  secret_ = random_key();
  if (config.size > 1) admission_ = std::make_unique<Admission>(config.interface_address);
  peers_.resize(static_cast<std::size_t>(config.size));
  watch_own(poller_, wake_.fd(), kWakeTag, "own calls");
}

TcpMesh::~TcpMesh() = default;

Bytes TcpMesh::address() const {
  if (!admission_) return {};
  return base::encode(RankRecord{.address = config_.interface_address, .port = admission_->port(), .secret = secret_});
}

void TcpMesh::connect(const std::vector<Bytes>& addresses) {
  if (!admission_) return;
  identity_.emplace(config_.rank, addresses);
  admission_->begin(*identity_);
  watch_own(poller_, admission_->fd(), kAdmissionTag, "connections");
}

Context& TcpMesh::open_context(std::uint16_t number, std::vector<int> members) {
  auto& place = contexts_[number];
  place = std::make_unique<Context>(*this, number, std::move(members));
  for (Peer* peer : open_) peer->link.retry();
  return *place;
}

bool TcpMesh::progress() {
  const bool moved = move();
  if (trouble_) drain();
  return moved;
}

void TcpMesh::drain() {
  const Deadline enough = Deadline::after(kDrain);
  for (bool moved = true; moved && !enough.expired() && !aborted();) {
    moved = sweep();
    const std::vector<Peer*> open = open_;  // each end changes the list
    for (Peer* peer : open) {
      if (peer->link.sends()) moved = peer->link.flush() || moved;
      moved = peer->link.receive() || moved;
    }
    for (const auto& [number, context] : contexts_) moved = context->advance() || moved;
  }
  conclude();
}

bool TcpMesh::move() {
  bool moved = false;
  const auto awaits = [](const Peer* peer) {
    return peer->link.expected() != nullptr || peer->link.transfers_due != 0;
  };
  if (open_.size() > kFew && std::count_if(open_.begin(), open_.end(), awaits) > static_cast<std::ptrdiff_t>(kFew))
    return sweep();
  for (std::size_t i = 0; i < open_.size(); ++i) {  // receiving may change the list
    Peer* const peer = open_[i];
    if (peer->link.sends()) moved = peer->link.flush() || moved;
    if (awaits(peer)) moved = peer->link.receive() || moved;
  }
  if (++calls_ % kLookEvery == 0 || !opening_.empty() || look_.load(std::memory_order_relaxed)) return sweep() || moved;
  // for resting threads: a full socket, or one whose next frame waits for a place
  if (!moved) {
    for (Peer* peer : open_) watch(peer->link);
  }
  return moved;
}

bool TcpMesh::sweep() {
  look_.store(false, std::memory_order_relaxed);
  bool moved = false;
  std::array<epoll_event, 64> events{};
  const int ready = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
    if (tag == kAdmissionTag) {
      admit();
    } else if (tag < peers_.size() && peers_[tag] && peers_[tag]->state == Peer::State::open) {
      Link& link = peers_[tag]->link;
      moved = (link.sends() && link.flush()) || moved;
      moved = link.receive() || moved;
    } else if (tag < peers_.size() && peers_[tag]) {
      peers_[tag]->ready = true;
    }
  }
  for (Peer* peer : open_) {
    if (peer->link.sends()) moved = peer->link.flush() || moved;
    watch(peer->link);
  }
  advance_opening();
  return moved;
}

/// Makes epoll report what this connection waits for: its end always, room only while there is data to send, and
/// nothing while its next frame has to wait.
void TcpMesh::watch(Link& link) {
  if (!link.is_open()) return;
  const std::uint32_t wanted = link.stalled() ? 0U : EPOLLIN | EPOLLRDHUP | (link.sends() ? EPOLLOUT : 0U);
  if (wanted == link.watched) return;
  epoll_event event{.events = wanted, .data = {.u64 = static_cast<std::uint64_t>(link.rank())}};
  const int how = wanted == 0 ? EPOLL_CTL_DEL : link.watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  // if it fails for lack of memory or of the user's watches, the next call retries
  if (::epoll_ctl(poller_.get(), how, link.fd(), &event) == 0) link.watched = wanted;
}

void TcpMesh::rest(std::chrono::microseconds limit) noexcept {
  const auto nanoseconds = std::chrono::nanoseconds(std::max(limit, std::chrono::microseconds::zero())).count();
  const timespec time{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  pollfd entry{.fd = poller_.get(), .events = POLLIN, .revents = 0};
  if (::ppoll(&entry, 1, &time, nullptr) > 0) look_.store(true, std::memory_order_relaxed);
}

void TcpMesh::abort() noexcept {
  aborted_.store(true, std::memory_order_release);
  wake_.ring();
}

Link* TcpMesh::link(int rank) {
  Peer& peer = need(rank);
  if (peer.state == Peer::State::opening || peer.state == Peer::State::open) return &peer.link;
  if (peer.state == Peer::State::left) mark_lost(peer, fmt::format("rank {} has left the group", rank), {});
  return nullptr;
}

Link* TcpMesh::departed(int rank) {
  Peer& peer = need(rank);
  return peer.state == Peer::State::left ? &peer.link : nullptr;
}

void TcpMesh::send(int rank, Outgoing& message) {
  if (failure_) return;
  Link* const to = link(rank);
  if (to == nullptr) return;
  const bool first = !to->sends();
  to->enqueue(message);
  if (first) to->flush();
}

void TcpMesh::expect(int rank, Incoming& message) {
  if (failure_) return;
  Link* const from = link(rank);
  if (from == nullptr) return;
  from->expect(message);
}

bool TcpMesh::lingers() const {
  if (!failure_ || failure_->outcome == Outcome::timeout) return false;
  const auto untold = [](const Peer* peer) { return peer->link.sends(); };
  return (!opening_.empty() && !linger_until_.expired()) ||
         (std::any_of(open_.begin(), open_.end(), untold) && !notify_until_.expired());
}

Placement TcpMesh::place(int rank, const Frame& frame) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  if (aborted()) return {.kind = Placement::Kind::refuse};
  switch (frame.kind) {
    case FrameKind::credit: return {};
    case FrameKind::goodbye: peer.said_goodbye = true; return {};
    case FrameKind::failure: peer.notice.resize(frame.bytes); return {.at = peer.notice.data()};
    default: break;
  }
  const auto context = contexts_.find(frame.context);
  if (context == contexts_.end()) return {.kind = Placement::Kind::not_yet};
  if (frame.kind == FrameKind::collective) {
    const Context::Found found = context->second->find(peer.link, frame);
    if (found.kind != Placement::Kind::here) return {.kind = found.kind};
    peer.current = found.message;
    return {.at = found.message->data + found.message->received};
  }
  return context->second->transfers().place(peer.link, frame);
}

void TcpMesh::whole(int rank, const Frame& frame) {
  Peer& peer = *peers_[static_cast<std::size_t>(rank)];
  switch (frame.kind) {
    case FrameKind::credit:
    case FrameKind::goodbye: return;
    case FrameKind::failure: {
      FailureNotice notice;
      try {
        notice = decode_failure_notice(peer.notice, config_.size);
      } catch (const Error& error) {
        notice = {.outcome = Outcome::peers_failed, .ranks = {rank}, .cause = error.what()};
      }
      const std::string cause = fmt::format("{} (reported by rank {})", notice.cause, rank);
      return fail({.outcome = notice.outcome,
                   .ranks = notice.ranks,
                   .cause = cause,
                   .elsewhere = notice.outcome == Outcome::mismatch},
                  -1);
    }
    case FrameKind::collective: break;
    default: return contexts_.at(frame.context)->transfers().whole(peer.link, frame);
  }
  Incoming& message = *std::exchange(peer.current, nullptr);
  message.received += frame.bytes;
  if (message.received != message.bytes) return;
  peer.link.take(message);
  message.done = true;
  if (message.left != nullptr) --*message.left;
}

void TcpMesh::close(Deadline deadline) noexcept {
  try {
    if (trouble_) conclude();
    const Deadline until = earlier(deadline, Deadline::after(std::chrono::seconds(2)));
    const bool alive = !failure_;
    if (alive) {
      // queued data belongs to operations that are over
      for (Peer* peer : open_) peer->link.drop();
    }
    for (Peer* peer : open_) {
      peer->link.enqueue_own({.kind = FrameKind::goodbye});
      peer->link.flush();
    }
    for (Peer* peer : open_) {
      while (peer->link.sends() && peer->link.is_open()) {
        pollfd entry{.fd = peer->link.fd(), .events = POLLOUT, .revents = 0};
        if (::poll(&entry, 1, until.poll_timeout_ms()) <= 0 || (entry.revents & (POLLERR | POLLHUP)) != 0) break;
        peer->link.flush();
      }
      // closing a connection with unread bytes resets it, which may destroy what the other side has not read
      peer->link.clear();
      if (peer->link.is_open()) ::shutdown(peer->link.fd(), SHUT_WR);
    }
    for (Peer* peer : open_) {
      // Credit that arrives later resets it as well, and loses what its host has not taken yet.
      const bool expects_credit = alive && peer->link.eager_in_flight >= credit_bytes(config_.size);
      for (; expects_credit && peer->link.undelivered() && !deadline.expired(); peer->link.clear()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  } catch (...) {  // out of memory for a goodbye
  }
  for (auto& peer : peers_) {
    if (!peer) continue;
    peer->outbound.reset();
    peer->link.close();
    peer->state = Peer::State::left;
  }
  open_.clear();
  opening_.clear();
  if (admission_) admission_->close();
}

}  // namespace ddp::collectives::tcp
