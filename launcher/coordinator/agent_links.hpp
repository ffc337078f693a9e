// The coordinator's connections to its agents, by number.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/connection.hpp"
#include "control/handshake.hpp"
#include "control/loop_connection.hpp"
#include "events/event_loop.hpp"

namespace ddp::launcher {

/// Not thread-safe. The callbacks run in the event loop, and may send to and drop any link.
class AgentLinks {
 public:
  using OnMessage = std::function<void(int link, const control::Message&)>;
  /// The link is gone already. @p peer as Connection::peer(), @p why as Connection::lost_because().
  using OnLost = std::function<void(int link, const std::string& peer, const std::string& why)>;

  /// @p loop must outlive the object.
  AgentLinks(EventLoop& loop, OnMessage on_message, OnLost on_lost);
  AgentLinks(const AgentLinks&) = delete;
  AgentLinks& operator=(const AgentLinks&) = delete;
  ~AgentLinks();

  int add(control::Connection connection);
  /// Accepts connections from now on.
  void listen(std::unique_ptr<control::Listener> listener);
  void stop_listening();

  /// Does nothing for a link that is gone.
  void send(int link, const control::Message& message);
  void send_to_all(const control::Message& message);
  /// Sends what the socket takes, and closes.
  void drop(int link);
  void set_peer(int link, std::string peer);
  std::string peer(int link) const;
  bool empty() const { return links_.empty(); }

  std::optional<Deadline> next_deadline() const;
  void time_passed();

 private:
  void accept_ready();
  void watch_listener();
  void forget_listener();

  EventLoop& loop_;
  OnMessage on_message_;
  OnLost on_lost_;
  std::unique_ptr<control::Listener> listener_;
  std::vector<int> listener_fds_;
  std::map<int, LoopConnection> links_;
  int next_link_ = 0;
};

}  // namespace ddp::launcher
