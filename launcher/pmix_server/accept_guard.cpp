#include "pmix_server/accept_guard.hpp"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/socket.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/socket_owner.hpp"

namespace ddp::launcher {
namespace {

// How soon the listener is woken again, where it has not come for what is complete.
constexpr std::chrono::milliseconds kWakeAgain{50};

std::atomic<AcceptGuard*> guard{nullptr};

/// In a user namespace that does not know this process's user, nobody's connections can be told apart.
bool is_ours(int connection) {
  using store_server::Endpoint;
  using Kind = store_server::SocketOwner::Kind;
  thread_local store_server::SocketOwners owners;
  const auto own = Endpoint::own(connection);
  const auto other = Endpoint::other(connection);
  if (!own || !other) return false;
  const Kind kind = owners.owner_of(*other, *own).kind;
  return kind == Kind::ours || kind == Kind::unknowable;
}

bool lacks_room(int number) { return number == EMFILE || number == ENFILE || number == ENOBUFS || number == ENOMEM; }

}  // namespace

AcceptGuard::AcceptGuard(std::chrono::milliseconds patience)
    : patience_(patience), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw base::system_error("making a poll set for the PMIx server's clients", errno);
  epoll_event event{.events = EPOLLIN, .data = {.fd = stop_.fd()}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_.fd(), &event) != 0)
    throw base::system_error("watching for the end of the PMIx server", errno);
  thread_ = base::start_thread([this] { watch(); });
  guard = this;
}

AcceptGuard::~AcceptGuard() {
  guard = nullptr;
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
  }
  stop_.ring();
  thread_.join();
}

int AcceptGuard::accept(int listening, sockaddr* address, socklen_t* length) noexcept {
  int error = EAGAIN;
  try {
    const std::lock_guard lock{mutex_};
    listening_ = listening;
    take_in(listening);
    if (!complete_.empty()) {
      base::UniqueFd connection = std::move(complete_.front());
      complete_.pop_front();
      if (!complete_.empty()) wake_listener();
      // What libpmix prints of a client's address is not worth a failure.
      if (address != nullptr && length != nullptr && ::getpeername(connection.get(), address, length) != 0) *length = 0;
      return connection.release();
    }
  } catch (const std::exception&) {  // no memory
  }
  errno = error;
  return -1;
}

/// With the mutex held, like all that follows but watch(): all clients that wait.
void AcceptGuard::take_in(int listening) {
  for (;;) {
    base::UniqueFd connection{::accept4(listening, nullptr, nullptr, 0)};
    if (connection) {
      // One that has closed already is often our own: it has woken the listener.
      const ClientGreeting greeting = look_at_greeting(connection.get());
      if (greeting == ClientGreeting::none || !is_ours(connection.get())) continue;
      if (greeting == ClientGreeting::whole) {
        complete_.push_back(std::move(connection));
      } else {
        add(std::move(connection));
      }
    } else if (errno == EINTR || errno == ECONNABORTED) {
      continue;
    } else if (!lacks_room(errno) || !base::client_waits(listening) || !make_room()) {
      return;
    }
  }
}

void AcceptGuard::add(base::UniqueFd connection) {
  if (incomplete_.size() >= kMostIncomplete) make_room();
  // Edge-triggered: once for all bytes that have arrived.
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.fd = connection.get()}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.get(), &event) != 0) return;
  incomplete_.push_back({.connection = std::move(connection), .limit = Deadline::after(patience_)});
}

/// Closes the one that has said nothing for longest; false: there is none.
bool AcceptGuard::make_room() {
  if (incomplete_.empty()) return false;
  incomplete_.pop_front();
  return true;
}

void AcceptGuard::watch() {
  std::array<epoll_event, 64> events{};
  for (;;) {
    Deadline next = Deadline::after(std::chrono::hours(1));
    {
      const std::lock_guard lock{mutex_};
      if (over_) return;
      next = next_look();
    }
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), next.poll_timeout_ms());
    const std::lock_guard lock{mutex_};
    for (int i = 0; i < count; ++i) look_at(events.at(static_cast<std::size_t>(i)).data.fd);
    close_overdue();
    if (!complete_.empty()) wake_listener();
  }
}

void AcceptGuard::look_at(int connection) {
  const auto found = std::find_if(incomplete_.begin(), incomplete_.end(),
                                  [&](const Incomplete& each) { return each.connection.get() == connection; });
  if (found == incomplete_.end()) return;
  switch (look_at_greeting(connection)) {
    case ClientGreeting::incomplete: return;
    case ClientGreeting::none: break;
    case ClientGreeting::whole:
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection, nullptr);
      complete_.push_back(std::move(found->connection));
      break;
  }
  incomplete_.erase(found);
}

void AcceptGuard::close_overdue() {
  while (!incomplete_.empty() && incomplete_.front().limit.expired()) incomplete_.pop_front();
}

Deadline AcceptGuard::next_look() {
  const Deadline next = incomplete_.empty() ? Deadline::after(std::chrono::hours(1)) : incomplete_.front().limit;
  return complete_.empty() ? next : earlier(next, Deadline::after(kWakeAgain));
}

/// Its poll sees the listening socket only: a connection that is closed at once makes it call accept() again.
void AcceptGuard::wake_listener() {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return;
  const base::UniqueFd knock{::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!knock) return;                                 // once more in a moment
  const linger at_once{.l_onoff = 1, .l_linger = 0};  // leaves no port behind that waits
  ::setsockopt(knock.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  (void)::connect(knock.get(), reinterpret_cast<const sockaddr*>(&address), length);
}

}  // namespace ddp::launcher

/// In a program, this definition takes precedence over the C library's for all libraries.
extern "C" __attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* length) {
  ddp::launcher::AcceptGuard* const own = ddp::launcher::guard;
  return own == nullptr ? ::accept4(fd, address, length, 0) : own->accept(fd, address, length);
}

namespace ddp::launcher {

ClientGreeting look_at_greeting(int connection) noexcept {
  std::array<std::byte, kGreetingHeaderBytes> header{};
  const ssize_t got = ::recv(connection, header.data(), header.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? ClientGreeting::incomplete : ClientGreeting::none;
  if (got == 0) return ClientGreeting::none;
  if (static_cast<std::size_t>(got) < header.size()) return ClientGreeting::incomplete;
  std::uint32_t length = 0;
  std::memcpy(&length, header.data() + 2 * sizeof length, sizeof length);
  if (length > kLongestGreetingBytes) return ClientGreeting::none;
  int arrived = 0;
  if (::ioctl(connection, FIONREAD, &arrived) != 0) return ClientGreeting::none;
  return static_cast<std::size_t>(arrived) >= header.size() + length ? ClientGreeting::whole
                                                                     : ClientGreeting::incomplete;
}

}  // namespace ddp::launcher
