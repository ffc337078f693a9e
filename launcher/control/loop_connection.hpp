// A control connection in an event loop: calls functions for what arrives, and sends when the socket takes it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ddp/deadline.hpp>

#include "control/connection.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher {

/// Not thread-safe. Its functions are called from EventLoop::run_once() and read(), and may close or destroy it, after
/// which none is called any more.
class LoopConnection {
 public:
  using OnMessage = std::function<void(const control::Message&)>;
  /// @p why as control::Connection::lost_because()
  using OnLost = std::function<void(const std::string& why)>;

  /// @param loop must outlive the object
  /// @param on_lost called once, after @p on_message for all that arrived before
  LoopConnection(EventLoop& loop, control::Connection connection, OnMessage on_message, OnLost on_lost);
  LoopConnection(const LoopConnection&) = delete;
  LoopConnection& operator=(const LoopConnection&) = delete;
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

  EventLoop& loop_;
  control::Connection connection_;
  std::shared_ptr<Callbacks> callbacks_;  ///< outlives the object while one of them runs
};

}  // namespace ddp::launcher
