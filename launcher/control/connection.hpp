// A control connection: messages over a non-blocking stream socket.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "control/messages.hpp"
#include "stream/event_loop.hpp"
#include "stream/framing.hpp"
#include "stream/secret.hpp"

namespace ddp::launcher::control {

/// The longest message, in bytes: a fence of some 100 000 ranks.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{256} << 20U;
/// A message goes in frames of this size and a last one that is shorter, perhaps empty: what is sealed and framed for a
/// connection is never more than one of them, however long the message and however many connections get it.
inline constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;

/// Owns the socket, which it makes non-blocking. Not thread-safe. A TCP peer that vanishes (power, cable) is noticed
/// after about 20 s.
class Connection {
 public:
  /// @param peer for messages: "the agent on n2 (pid 7)".
  /// @param cipher of a connection between hosts
  Connection(base::UniqueFd socket, std::string peer, std::optional<stream::SessionCipher> cipher = {});

  /// Also of a lost connection, for stream::EventLoop::forget(): the descriptor is closed by close() or the destructor.
  int fd() const { return socket_.get(); }
  bool open() const { return socket_ && lost_because_.empty(); }
  const std::string& peer() const { return peer_; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }

  /// Queues the message and sends what the socket takes. A lost connection shows at the next receive(). Bytes that are
  /// encoded already (encode_once()) are shared, not copied.
  void send(const Message& message);
  /// Sends a sign of life, of which the other side's receive() returns nothing, unless other data is on its way.
  void beat();
  /// When anything has come last, a sign of life or part of a message; at first, when the connection was made.
  Deadline::Clock::time_point last_heard() const { return last_heard_; }
  /// Whether data is queued: then call flush() when the socket is writable.
  bool wants_to_write() const { return !outgoing_.empty() || sent_of_frame_ < frame_.size(); }
  void flush();

  /// For a process that only forwards PMIx exchanges and output: receive() returns their messages as control::Encoded.
  void keep_bulk_encoded() { keep_bulk_encoded_ = true; }
  /// The messages that have arrived; of many, about the first megabyte, and the descriptor stays readable. When the
  /// peer has closed the connection, or sent an invalid message, open() is false then, and lost_because() says why.
  std::vector<Message> receive();
  const std::string& lost_because() const {
    return lost_because_;
  }  ///< "it was closed", "Connection reset by peer ..."

  /// One step of the end, which never waits: sends what the socket takes, and nothing new. True once the peer's host
  /// has acknowledged all, or nothing more will be: then close. Else call it again in a few milliseconds.
  bool farewell();
  /// Sends what is queued, waits until @p deadline for the peer's host to acknowledge it, and closes.
  void close(Deadline deadline);

 private:
  struct Outgoing {
    Encoded message;
    std::size_t framed = 0;  ///< bytes of it
  };

  void queue(Encoded message);
  bool next_frame();
  std::optional<Bytes> join(Bytes piece);
  void lose(std::string because);
  void send_failed(int number);
  void drop_incoming();
  void drop_outgoing();

  base::UniqueFd socket_;
  std::string peer_;
  std::optional<stream::SessionCipher> cipher_;
  stream::FrameBuffer incoming_{kMaxMessageBytes};
  Bytes joined_;                   ///< the pieces of a message that is not complete
  std::deque<Outgoing> outgoing_;  ///< not sealed: that happens when the socket can take it
  Bytes frame_;                    ///< what is being sent
  std::size_t sent_of_frame_ = 0;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
  bool keep_bulk_encoded_ = false;
  bool sending_failed_ = false;
  std::string sending_failed_because_;  ///< unless the end of the stream says it
  std::string lost_because_;
};

/// Both ends of a connection within this host: an agent and its attempt process.
struct ConnectionPair {
  base::UniqueFd first, second;
};
ConnectionPair make_pair();

}  // namespace ddp::launcher::control

namespace ddp::launcher {

// A control connection in an event loop: calls functions for what arrives, and sends when the socket takes it.

/// Not thread-safe. Its functions are called from stream::EventLoop::run_once() and read(), and may close or destroy
/// it, after which none is called any more.
class LoopConnection {
 public:
  using OnMessage = std::function<void(const control::Message&)>;
  /// @p why as control::Connection::lost_because()
  using OnLost = std::function<void(const std::string& why)>;

  /// @param loop must outlive the object
  /// @param on_lost called once, after @p on_message for all that arrived before
  LoopConnection(stream::EventLoop& loop, control::Connection connection, OnMessage on_message, OnLost on_lost);
  LoopConnection& operator=(LoopConnection&&) = delete;
  ~LoopConnection();

  /// False from the last messages of a lost connection on.
  bool open() const { return connection_.open(); }
  int fd() const { return connection_.fd(); }
  const std::string& peer() const { return connection_.peer(); }
  void set_peer(std::string peer) { connection_.set_peer(std::move(peer)); }

  /// Does nothing when it is not open.
  void send(const control::Message& message);
  /// As control::Connection.
  void beat();
  Deadline::Clock::time_point last_heard() const { return connection_.last_heard(); }
  /// Reads what has arrived, as the loop does.
  void read();
  /// Gives the connection up to the caller. Calls no function; the object is only to be destroyed then.
  control::Connection release();
  /// As control::Connection::close(). Calls no function.
  void close(Deadline deadline);

 private:
  struct Callbacks {
    OnMessage on_message;
    OnLost on_lost;
    bool enabled = true;
  };
  void forget();

  stream::EventLoop& loop_;
  control::Connection connection_;
  std::shared_ptr<Callbacks> callbacks_;  ///< outlives the object while one of them runs
};

}  // namespace ddp::launcher
