// A side channel between ranks: each answers status requests of the others on its own thread, even while its main
// thread is stuck in a collective.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "base/wake_event.hpp"
#include "world/peer_wire.hpp"

namespace ddp::world {

/// Answers requests of peers that present this rank's token, which travelled through the launcher's key-value store;
/// others are disconnected. Listens on one address and a port that the kernel chose. Thread-safe.
class PeerChannel {
 public:
  /// Runs on the channel's thread: must not block and must not call unserve. Exceptions are sent as failures.
  using Handler = std::function<Bytes(std::span<const std::byte> body)>;

  explicit PeerChannel(const std::string& address);
  PeerChannel(const PeerChannel&) = delete;
  PeerChannel& operator=(const PeerChannel&) = delete;
  ~PeerChannel();

  std::uint16_t port() const noexcept { return port_; }
  const ChannelToken& token() const noexcept { return token_; }

  void serve(const std::string& service, Handler handler);
  /// After it returns the handler is not running and will not be called again.
  void unserve(const std::string& service);

 private:
  struct Connection;
  void run();
  /// False when no descriptor is left for a pending connection.
  bool accept_new(std::vector<Connection>& connections);
  bool advance(Connection& connection);
  Bytes answer(const PeerRequest& request);

  base::UniqueFd listener_;
  base::WakeEvent wake_;
  std::uint16_t port_ = 0;
  ChannelToken token_{};
  std::mutex handlers_mutex_;
  std::map<std::string, Handler> handlers_;
  std::thread thread_;  // last: it uses all of the above
};

/// How a rank is reached.
struct PeerEndpoint {
  int rank = 0;  ///< for the caller's use only
  std::string address;
  std::uint16_t port = 0;
  ChannelToken token{};
};

/// The outcome of one question.
struct PeerReply {
  enum class Kind {
    answered,
    refused,    ///< no listener, or it hung up: the rank is gone
    no_answer,  ///< the deadline passed: the rank is stopped, its host is down, or the network is cut
    failed,     ///< it answered with an error: see problem
    not_asked,  ///< this side could not ask it: no time, no descriptor
  };
  Kind kind = Kind::not_asked;
  Bytes body;           ///< of an answer
  std::string problem;  ///< why not, with the native code
};

/// Asks all endpoints at once; replies come in the order of the endpoints. Returns by the deadline.
std::vector<PeerReply> ask_peers(const std::vector<PeerEndpoint>& endpoints, const std::string& service,
                                 std::span<const std::byte> body, Deadline deadline);

}  // namespace ddp::world
