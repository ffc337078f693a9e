// The server's thread: its events, new connections, and the end of each.
#include "store_server/store_server.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "store_server/store_server_impl.hpp"

namespace ddp::store_server {
namespace {

using base::LogLevel;

constexpr std::chrono::seconds kLongestSleep{60};
/// How often clients that hold up others are looked for.
constexpr std::chrono::milliseconds kStallCheck{500};

base::UniqueFd spare_descriptor() { return base::UniqueFd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}; }

stream::StrangerLimits limits_of(const StoreServerOptions& options) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);  // most of them are the program's
  return {.most = std::clamp<std::size_t>(options.max_unadmitted, 1, std::max<rlim_t>(files.rlim_cur / 4, 1)),
          .patience = options.validation_limit,
          .silence = options.silence_limit};
}

}  // namespace

void Refusals::post(const std::string& line, Clock::time_point now) {
  if (at_once_ > 0) {
    --at_once_;
    next_ = now + pause_;
  } else if (now < next_) {
    ++left_out_;
    return;
  } else {
    pause_ = std::min<std::chrono::milliseconds>(2 * pause_, kLongestPause);
    next_ = now + pause_;
  }
  const std::size_t left_out = std::exchange(left_out_, 0);
  const std::lock_guard lock(mutex_);
  lines_.push_back(left_out == 0 ? line : fmt::format("{} (and {} more before)", line, left_out));
  posted_.ring();
}

std::vector<std::string> Refusals::take() {
  const std::lock_guard lock(mutex_);
  posted_.clear();
  return std::exchange(lines_, {});
}

StoreServer::Impl::Impl(const StoreServerOptions& given)
    : Impl(given, stream::listen_on(given.listen_addresses, given.port,
                                    {.clients = "clients of the TCPStore", .range = given.port_range})) {}

StoreServer::Impl::Impl(const StoreServerOptions& given, stream::Listeners listeners)
    : options(given),
      port(listeners.port),
      spare(spare_descriptor()),
      keys(options.limits.stored_bytes),
      strangers(limits_of(options)),
      acceptor(
          loop, std::move(listeners.sockets),
          [this](base::UniqueFd fd, const sockaddr_storage& from) {
            if (const auto peer = Endpoint::of(from)) take_in(std::move(fd), *peer);
          },
          [this](int listener, int error) { return make_room(listener, error); }) {
  loop.watch(stop.fd(), [this] { stopped = true; });
  thread = base::start_thread([this] { serve(); });
}

StoreServer::Impl::~Impl() {
  stop.ring();
  thread.join();
}

void StoreServer::Impl::serve() noexcept {
  while (!stopped) {
    try {
      const auto longest = parked.empty() ? std::chrono::milliseconds{kLongestSleep} : kStallCheck;
      loop.run_once(Deadline::after(longest));
      if (!parked.empty()) {
        drop_stalled();
        resume_parked();
      }
      flush();
      ends.set(strangers.next_end());
    } catch (const std::exception& error) {  // bad_alloc outside of any request
      base::log(LogLevel::error, "TCPStore server: {}", error.what());
    }
  }
}

void StoreServer::Impl::react(int fd, std::uint32_t events) {
  Connection& connection = *find(fd);
  if ((events & EPOLLOUT) != 0 && !send_some(connection)) {
    drop(connection, "the connection broke");
  } else if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    // a parked one is watched for nothing else
    connection.parked ? drop(connection, "the connection broke") : receive(connection);
  }
  flush();
}

void StoreServer::Impl::take_in(base::UniqueFd fd, const Endpoint& peer) {
  const bool here = is_own_host(peer.address);
  if (here && !is_ours(fd.get(), peer)) return;
  if (!here && !options.key) {
    return refusals.post(fmt::format(
        "refused a connection from {}: it is not an address of this host, and the job runs on this host only",
        peer.text()));
  }
  if (!here && strangers.full()) {
    refuse(numbered(*strangers.most_crowding()), "too many connections have no known owner yet");
  }
  const int number = fd.get();
  const auto slot = static_cast<std::size_t>(number);
  if (slot >= connections.size()) connections.resize(slot + 1);
  auto connection = std::make_unique<Connection>(std::move(fd), ++last_serial, peer, options.limits.request_bytes);
  connection->admitted = here;
  if (!options.key) connection->stage = Stage::client;
  strangers.add(connection->serial, stream::source_of(peer.address.bytes()), here);
  connections[slot] = std::move(connection);
  try {
    loop.watch(number, EPOLLIN, [this, number](std::uint32_t events) { react(number, events); });
  } catch (const std::exception&) {
    drop(*connections[slot], "no memory");
  }
}

/// No descriptors are left: closes a pending connection, else the one to be accepted.
bool StoreServer::Impl::make_room(int listener, int error) {
  if (error != EMFILE && error != ENFILE) return false;
  const auto oldest = strangers.most_crowding() ? strangers.most_crowding() : strangers.oldest_known();
  if (oldest) {
    refuse(numbered(*oldest), "this process has no descriptor left (ulimit -n), and it has not sent VALIDATE");
    return true;
  }
  spare.reset();
  base::UniqueFd refused{::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (refused) refusals.post("refused a connection: this process has no descriptor left for it (ulimit -n)");
  refused.reset();
  spare = spare_descriptor();
  return static_cast<bool>(spare);
}

void StoreServer::Impl::drop(Connection& connection, std::string_view why) {
  const int fd = connection.fd.get();
  base::log(LogLevel::debug, "TCPStore server: closing client {}: {}", connection.serial, why);
  // Not by closing alone: a process that was forked just now holds the socket until its execve(2), and its peer would
  // not see the end.
  loop.forget(fd);
  ::shutdown(fd, SHUT_RDWR);
  // closed at the end of this scope, so that its descriptor is not reused before the key space forgets it
  const std::unique_ptr<Connection> closed = std::move(connections[static_cast<std::size_t>(fd)]);
  strangers.remove(closed->serial);
  unread_bytes -= closed->counted_bytes;
  if (closed->large) --large_requests;
  witnesses.settled(closed->serial);
  keys.forget(fd, *this);
  if (closed->resident) lose_witness(fd);
}

void StoreServer::Impl::drop_late() {
  while (const auto late = strangers.late()) {
    Connection& connection = numbered(late->number);
    if (late->silent) {
      drop(connection, "it says nothing");
    } else if (connection.stage == Stage::asking) {
      refuse(connection,
             fmt::format("its host did not report its owner within {} ms", options.validation_limit.count()));
    } else {
      drop(connection, "no VALIDATE in time");
    }
  }
}

Connection* StoreServer::Impl::find(int fd) const {
  const auto slot = static_cast<std::size_t>(fd);
  return slot < connections.size() ? connections[slot].get() : nullptr;
}

Connection& StoreServer::Impl::numbered(std::uint64_t serial) const {
  return **std::find_if(connections.begin(), connections.end(),
                        [serial](const auto& each) { return each && each->serial == serial; });
}

StoreServer::StoreServer(const StoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}

StoreServer::~StoreServer() = default;

std::uint16_t StoreServer::port() const { return impl_->port; }

int StoreServer::refusals_fd() const { return impl_->refusals.fd(); }

std::vector<std::string> StoreServer::take_refusals() const { return impl_->refusals.take(); }

}  // namespace ddp::store_server
