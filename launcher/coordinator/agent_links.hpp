// The coordinator's connections to its agents, by number: shows them life, and loses those that show none.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/connection.hpp"
#include "control/handshake.hpp"
#include "events/heartbeat.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// Not thread-safe. The callbacks run in the event loop, and may send to and drop any link.
class AgentLinks {
 public:
  using OnMessage = std::function<void(int link, const control::Message&)>;
  struct Loss {
    std::string peer;  ///< as Connection::peer()
    std::string why;   ///< as Connection::lost_because(), or that it was silent
    bool silent;       ///< nothing had come for a while, so its processes may still be there
    bool rested;       ///< as set_resting() says
  };
  /// The link is gone already.
  using OnLost = std::function<void(int link, const Loss& loss)>;

  /// @p loop must outlive the object.
  AgentLinks(stream::EventLoop& loop, PeerLimits limits, OnMessage on_message, OnLost on_lost);
  AgentLinks& operator=(AgentLinks&&) = delete;
  ~AgentLinks();

  int add(control::Connection connection);
  /// Accepts connections from now on.
  void listen(std::unique_ptr<control::Listener> listener);
  void stop_listening();

  /// Does nothing for a link that is gone.
  void send(int link, const control::Message& message);
  void send_to_all(const control::Message& message);
  /// Forgets the link, and closes it as soon as its last messages have left; at most 0.2 s later, for all dropped links
  /// at once. Never waits; the destructor does, for what is left of that time.
  void drop(int link);
  /// Closes, for a peer that does not answer.
  void abandon(int link);
  /// Gives it up: on_lost follows.
  void lose(int link, const std::string& why);
  /// When anything has come from it last; nothing for a link that is gone.
  std::optional<Heartbeat::Time> last_heard(int link) const;
  /// It has shown no life for longer than a healthy agent would.
  bool is_silent(int link) const;
  /// Nothing comes from it until it goes on: it is not lost for that.
  void set_resting(int link, bool rests);
  bool any_resting() const { return !resting_.empty(); }
  void set_peer(int link, std::string peer);
  std::string peer(int link) const;
  bool empty() const { return links_.empty(); }

  std::optional<Deadline> next_deadline() const;
  void time_passed() { see_off(); }

 private:
  struct Leaving {
    control::Connection connection;
    Deadline limit;
  };

  void beat();
  void see_off();
  void accept_ready();
  void watch_listener();
  void forget_listener();

  stream::EventLoop& loop_;
  PeerLimits limits_;
  OnMessage on_message_;
  OnLost on_lost_;
  std::unique_ptr<control::Listener> listener_;
  std::vector<int> listener_fds_;
  std::map<int, LoopConnection> links_;
  std::list<Leaving> leaving_;
  std::set<int> resting_;
  int next_link_ = 0;
  Heartbeat heartbeat_;
};

}  // namespace ddp::launcher
