// The asking side of the peer channel: many peers at once, over non-blocking sockets.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "world/peer_wire.hpp"

namespace ddp::world {

/// How a rank is reached.
struct PeerEndpoint {
  int rank = 0;  ///< for the caller's use only
  std::string address;
  std::uint16_t port = 0;
  ChannelToken token{};
  base::ProcessNumber process{};  ///< for the caller's use only
};

/// The outcome of one question.
struct PeerReply {
  enum class Kind {
    answered,
    refused,      ///< its host is up, and nobody listens: the rank is gone
    hung_up,      ///< the connection ended without an answer: it is dying, or has dropped the question
    busy,         ///< it has no room for the question: alive
    unreachable,  ///< there is no way to its host: EHOSTUNREACH and the like
    no_answer,    ///< the deadline passed: it is slow or stopped, its host is down, or the network is cut
    failed,       ///< it answered with an error: see problem
    not_asked,    ///< this side could not ask it: no time, no descriptor
  };
  Kind kind = Kind::not_asked;
  Bytes body{};         ///< of an answer
  std::string problem;  ///< why not, with the native code
};

/// The same question to many peers, each as often as wanted. Not thread-safe.
class PeerInquiry {
 public:
  PeerInquiry(std::vector<PeerEndpoint> endpoints, const std::string& service, std::span<const std::byte> body);
  PeerInquiry(const PeerInquiry&) = delete;
  PeerInquiry& operator=(const PeerInquiry&) = delete;
  ~PeerInquiry();

  /// Asks the peer with this index, over a new connection; a question to it that is still open is given up. Waits for a
  /// free connection if too many are open.
  void ask(std::size_t peer);
  /// Whether a question to it is on its way.
  bool asking(std::size_t peer) const { return open_[peer] != nullptr; }
  /// Whether any question is on its way, or waits for a free connection.
  bool waiting() const { return opened_ > 0 || !queued_.empty(); }

  /// The replies since the last call, by the peer's index: waits until there is one, or @p deadline. Replies that are
  /// there already are taken at any time.
  std::vector<std::pair<std::size_t, PeerReply>> wait(Deadline deadline);

 private:
  class Question;
  void fill();
  void close(std::size_t peer);

  const std::vector<PeerEndpoint> endpoints_;
  const std::string service_;
  const Bytes body_;
  std::vector<std::unique_ptr<Question>> open_;  ///< by peer; null: none
  std::size_t opened_ = 0;
  std::deque<std::size_t> queued_;
};

/// Asks all endpoints at once, busy ones again; replies come in the order of the endpoints. Returns by the deadline.
std::vector<PeerReply> ask_peers(const std::vector<PeerEndpoint>& endpoints, const std::string& service,
                                 std::span<const std::byte> body, Deadline deadline);

}  // namespace ddp::world
