// Frames over non-blocking stream sockets: sends what the socket takes, receives what has arrived.
#include "control/connection.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::launcher::control {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;
constexpr int kReadsPerTurn = 16;  // then other connections take their turn

bool is_tcp(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && (domain == AF_INET || domain == AF_INET6);
}

std::string describe(int number) { return fmt::format("{} [{}]", base::errno_text(number), base::errno_name(number)); }

void require_sendable(std::size_t bytes) {
  if (bytes <= kMaxMessageBytes) return;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "sending a control message",
               .cause = fmt::format("it has {} bytes; at most {} can be sent", bytes, kMaxMessageBytes)}};
}

/// The next bytes of a message from @p begin on, at most kPieceBytes. @param joined keeps those that do not lie
/// together
std::span<const std::byte> piece_of(const Encoded& message, std::size_t begin, Bytes& joined) {
  const std::span<const std::byte> first{*message.bytes};
  const std::span<const std::byte> rest = message.rest ? std::span{*message.rest} : std::span<const std::byte>{};
  const std::size_t size = std::min(message.size() - begin, kPieceBytes);
  if (begin >= first.size()) return rest.subspan(begin - first.size(), size);
  if (begin + size <= first.size()) return first.subspan(begin, size);
  joined.assign(first.begin() + static_cast<std::ptrdiff_t>(begin), first.end());
  const auto more = rest.first(size - joined.size());
  joined.insert(joined.end(), more.begin(), more.end());
  return joined;
}

}  // namespace

Connection::Connection(base::UniqueFd socket, std::string peer, std::optional<stream::SessionCipher> cipher)
    : socket_(std::move(socket)), peer_(std::move(peer)), cipher_(std::move(cipher)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw base::system_error(fmt::format("preparing the connection to {}", peer_), errno);
  }
  if (is_tcp(socket_.get())) {
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    base::keep_alive(socket_.get());
  }
}

void Connection::send(const Message& message) { queue(encode_once(message)); }

void Connection::beat() {
  if (!wants_to_write()) queue({});
}

void Connection::queue(Encoded message) {
  if (!open() || sending_failed_) return;
  require_sendable(message.size());
  outgoing_.push_back({.message = std::move(message), .framed = 0});
  flush();
}

/// Frames the next queued piece; false if there is none.
bool Connection::next_frame() {
  frame_.clear();
  sent_of_frame_ = 0;
  if (outgoing_.empty()) {
    frame_ = Bytes{};  // frees the memory
    return false;
  }
  Outgoing& first = outgoing_.front();
  Bytes joined;
  const auto piece = piece_of(first.message, first.framed, joined);
  frame_ = cipher_ ? stream::frame(cipher_->seal(piece)) : stream::frame(piece);
  first.framed += piece.size();
  if (piece.size() < kPieceBytes) outgoing_.pop_front();
  return true;
}

void Connection::flush() {
  while (sent_of_frame_ < frame_.size() || next_frame()) {
    const auto rest = std::span{frame_}.subspan(sent_of_frame_);
    const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) send_failed(errno);
      return;
    }
    sent_of_frame_ += static_cast<std::size_t>(sent);
  }
}

// Data that the peer sent before, perhaps why it left, can still be received: this is not the end yet.
void Connection::send_failed(int number) {
  drop_outgoing();
  sending_failed_ = true;
  if (number != EPIPE) sending_failed_because_ = describe(number);
  ::shutdown(socket_.get(), SHUT_WR);
}

std::vector<Message> Connection::receive() {
  std::vector<Message> messages;
  if (!open()) return messages;
  std::array<std::byte, kReadBytes> chunk;
  std::string end;
  for (int turn = 0; turn < kReadsPerTurn && end.empty(); ++turn) {
    const ssize_t received = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (received > 0) {
      incoming_.append(std::span{chunk}.first(static_cast<std::size_t>(received)));
      last_heard_ = Deadline::Clock::now();
    } else if (received == 0) {
      end = "it was closed";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (sending_failed_) end = "it was closed";
      break;
    } else if (errno != EINTR) {
      end = describe(errno);
    }
  }
  try {
    while (std::optional<Bytes> piece = incoming_.next()) {
      std::optional<Bytes> whole = join(cipher_ ? cipher_->open(*piece) : std::move(*piece));
      if (!whole || whole->empty()) continue;  // a part, or a heartbeat
      if (keep_bulk_encoded_ && is_bulk(*whole)) {
        messages.emplace_back(Encoded{.bytes = std::make_shared<const Bytes>(*std::move(whole))});
      } else {
        messages.push_back(decode(*whole));
      }
    }
  } catch (const Error& error) {
    lose(fmt::format("it sent an invalid message: {}", error.what()));
    return messages;
  }
  if (!end.empty()) {
    if (!sending_failed_because_.empty()) end = sending_failed_because_;
    lose(incoming_.has_part() || !joined_.empty() ? end + ", in the middle of a message" : end);
  }
  return messages;
}

/// The whole message, once its last piece has arrived.
std::optional<Bytes> Connection::join(Bytes piece) {
  const bool last = piece.size() < kPieceBytes;
  if (last && joined_.empty()) return piece;
  if (joined_.size() + piece.size() > kMaxMessageBytes) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "receiving a control message",
                 .cause = fmt::format("its pieces have more than {} bytes", kMaxMessageBytes)}};
  }
  joined_.insert(joined_.end(), piece.begin(), piece.end());
  return last ? std::optional{std::exchange(joined_, {})} : std::nullopt;
}

void Connection::drop_outgoing() {
  outgoing_.clear();
  frame_ = Bytes{};
  sent_of_frame_ = 0;
}

// The descriptor stays until close(), so that its number is not reused before the event loop forgets it.
void Connection::lose(std::string because) {
  lost_because_ = std::move(because);
  drop_outgoing();
  incoming_ = stream::FrameBuffer{kMaxMessageBytes};
  joined_ = Bytes{};
  ::shutdown(socket_.get(), SHUT_RDWR);
}

// Closing a TCP socket with unread bytes resets the connection, which may cost the peer the last data sent.
void Connection::drop_incoming() {
  std::array<std::byte, kReadBytes> chunk;
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT) <= 0) return;
  }
}

bool Connection::farewell() {
  if (!open()) return true;
  flush();
  if (wants_to_write()) return false;
  if (!sending_failed_) ::shutdown(socket_.get(), SHUT_WR);
  drop_incoming();
  int bytes = 0;
  const bool unacknowledged = is_tcp(socket_.get()) && ::ioctl(socket_.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
  // poll(2) reports a peer that has closed or is gone.
  return sending_failed_ || !unacknowledged ||
         base::wait_for(socket_.get(), 0, Deadline::after(std::chrono::seconds(0)));
}

void Connection::close(Deadline deadline) {
  while (!farewell() && !deadline.expired()) {
    // No event reports acknowledgements, which take milliseconds.
    const auto pause = Deadline::after(std::chrono::milliseconds(2));
    wants_to_write() ? base::wait_for(socket_.get(), POLLOUT, deadline)
                     : base::wait_for(socket_.get(), 0, earlier(deadline, pause));
  }
  if (open()) ::shutdown(socket_.get(), SHUT_WR);
  drop_incoming();
  drop_outgoing();
  socket_.reset();
}

ConnectionPair make_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) {
    throw base::system_error("making a pair of connected sockets", errno);
  }
  return {.first = base::UniqueFd{fds[0]}, .second = base::UniqueFd{fds[1]}};
}

}  // namespace ddp::launcher::control

namespace ddp::launcher {

LoopConnection::LoopConnection(stream::EventLoop& loop, control::Connection connection, OnMessage on_message,
                               OnLost on_lost)
    : loop_(loop),
      connection_(std::move(connection)),
      callbacks_(std::make_shared<Callbacks>(
          Callbacks{.on_message = std::move(on_message), .on_lost = std::move(on_lost), .enabled = true})) {
  loop_.watch(connection_.fd(), [this] { read(); });
}

LoopConnection::~LoopConnection() { forget(); }

void LoopConnection::forget() {
  callbacks_->enabled = false;
  loop_.forget(connection_.fd());
}

void LoopConnection::send(const control::Message& message) {
  if (!connection_.open()) return;
  connection_.send(message);
  loop_.want_write(connection_.fd(), connection_.wants_to_write());
}

void LoopConnection::beat() {
  if (!connection_.open()) return;
  connection_.beat();
  loop_.want_write(connection_.fd(), connection_.wants_to_write());
}

control::Connection LoopConnection::release() {
  forget();
  return std::move(connection_);
}

void LoopConnection::close(Deadline deadline) {
  forget();
  connection_.close(deadline);
}

void LoopConnection::read() {
  if (!connection_.open()) return;
  const std::shared_ptr<Callbacks> callbacks = callbacks_;
  if (connection_.wants_to_write()) {
    connection_.flush();
    loop_.want_write(connection_.fd(), connection_.wants_to_write());
  }
  const std::vector<control::Message> messages = connection_.receive();
  const bool lost = !connection_.open();
  const std::string why = connection_.lost_because();
  if (lost) loop_.forget(connection_.fd());
  for (const control::Message& message : messages) {
    callbacks->on_message(message);
    if (!callbacks->enabled) return;
  }
  if (lost) callbacks->on_lost(why);
}

}  // namespace ddp::launcher
