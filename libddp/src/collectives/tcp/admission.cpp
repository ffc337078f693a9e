#include "collectives/tcp/admission.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::collectives::tcp {
namespace {

constexpr int kAcceptedAtOnce = 64;
constexpr std::chrono::milliseconds kMuted{100};

}  // namespace

Admission::Admission(const std::string& address)
    : poller_(::epoll_create1(EPOLL_CLOEXEC)), listener_(base::UnsharedFd{base::listen_tcp(address)}) {
  if (!poller_) throw base::system_error("waiting for other ranks' connections (epoll_create1)", errno);
}

std::uint16_t Admission::port() const { return base::local_port(listener_.get()); }

void Admission::begin(const MeshIdentity& identity) {
  identity_ = &identity;
  if (!watch(listener_.get(), 0)) throw base::system_error("waiting for other ranks' connections (epoll_ctl)", errno);
}

std::size_t Admission::most_unproven() const noexcept {
  return kMostStrangers + (identity_ == nullptr ? 0 : static_cast<std::size_t>(identity_->size()));
}

bool Admission::watch(int fd, std::uint64_t serial) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = serial}};
  return ::epoll_ctl(poller_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Admission::close() noexcept {
  unproven_.clear();
  shares_.clear();
  listener_.reset();
}

/// A forked child may hold the connection open, which would go on waking this rank.
void Admission::drop(Place place) {
  if (place->socket) ::epoll_ctl(poller_.get(), EPOLL_CTL_DEL, place->socket.get(), nullptr);
  shares_.remove(place->source);
  unproven_.erase(place);
}

/// Closes one of the source that has the most connections.
bool Admission::make_room() {
  if (unproven_.empty()) return false;
  const base::ConnectionSource source = shares_.largest();
  Place victim = unproven_.end();
  for (Place place = unproven_.begin(); place != unproven_.end(); ++place) {
    if (place->source != source) continue;
    if (victim == unproven_.end()) victim = place;
    if (place->said_hello) continue;
    victim = place;
    break;
  }
  drop(victim);
  return true;
}

void Admission::accept_waiting() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    base::UniqueFd socket{
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      if (!base::client_waits(listener_.get())) return;
      if (make_room()) continue;
      muted_ = true;
      muted_until_ = Deadline::after(kMuted);
      ::epoll_ctl(poller_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
      return;
    }
    if (unproven_.size() >= most_unproven()) make_room();
    unproven_.push_back({.socket = std::move(socket),
                         .source = base::source_of(address),
                         .until = Deadline::after(kPatience),
                         .serial = ++serial_});
    shares_.add(unproven_.back().source);
    // for want of memory: a rank tries again
    if (!watch(unproven_.back().socket.get(), serial_)) drop(std::prev(unproven_.end()));
  }
}

bool Admission::answer_hello(Unproven& one) {
  const auto hello = parse_hello(std::span<const std::byte, kHelloBytes>(one.received));
  const auto own = static_cast<std::uint32_t>(identity_->rank());
  if (!hello || hello->to != own || hello->from == own || hello->from >= static_cast<std::uint32_t>(identity_->size()))
    return false;
  one.said_hello = true;
  one.hello = *hello;
  one.nonce = random_key();
  one.filled = 0;
  std::array<std::byte, kChallengeBytes> challenge{};
  const Proof proof = identity_->prove(Side::accepting, one.hello, one.nonce);
  std::copy(one.nonce.begin(), one.nonce.end(), challenge.begin());
  std::copy(proof.begin(), proof.end(), challenge.begin() + sizeof(Nonce));
  // a new connection has room for it
  return ::send(one.socket.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(challenge.size());
}

bool Admission::read(Unproven& one, std::vector<Proven>& proven) {
  for (;;) {
    const std::size_t due = one.said_hello ? sizeof(Proof) : kHelloBytes;
    const ssize_t got = ::recv(one.socket.get(), one.received.data() + one.filled, due - one.filled, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (got == 0) return false;
    one.filled += static_cast<std::size_t>(got);
    if (one.filled < due) continue;
    if (!one.said_hello) {
      if (!answer_hello(one)) return false;
      continue;
    }
    if (identity_->proves(std::span(one.received).first(due), Side::connecting, one.hello, one.nonce)) {
      ::epoll_ctl(poller_.get(), EPOLL_CTL_DEL, one.socket.get(), nullptr);
      proven.push_back({.rank = static_cast<int>(one.hello.from), .socket = std::move(one.socket)});
    }
    return false;
  }
}

std::vector<Admission::Proven> Admission::advance() {
  std::vector<Proven> proven;
  if (!listener_ || identity_ == nullptr) return proven;
  if (muted_ && muted_until_.expired()) {
    muted_ = !watch(listener_.get(), 0);
    muted_until_ = Deadline::after(kMuted);
  }
  std::array<epoll_event, 64> events{};
  const int ready = ::epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool waiting = false;
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t serial = events[static_cast<std::size_t>(i)].data.u64;
    if (serial == 0) {
      waiting = true;
      continue;
    }
    const auto place = std::find_if(unproven_.begin(), unproven_.end(),
                                    [serial](const Unproven& one) { return one.serial == serial; });
    if (place != unproven_.end() && !read(*place, proven)) drop(place);
  }
  while (!unproven_.empty() && unproven_.front().until.expired()) drop(unproven_.begin());
  if (waiting) accept_waiting();
  return proven;
}

}  // namespace ddp::collectives::tcp
