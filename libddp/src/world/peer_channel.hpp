// A side channel between ranks: each answers status requests of the others on its own thread, even while its main
// thread is stuck in a collective.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "stream/admission.hpp"
#include "stream/event_loop.hpp"
#include "world/peer_wire.hpp"

namespace ddp::world {

/// Answers requests of peers that present this rank's token, which travelled through the launcher's key-value store;
/// others are disconnected, and cost some bytes each until then. Where too many have not shown a token yet, the oldest
/// of the host with the most of them is told that this rank is busy and is disconnected. Listens on one address and a
/// port that the kernel chose. Thread-safe.
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
  struct Asked;
  void run();
  /// Of a peer that has shown the token with these first bytes of its request.
  void take_in(base::UnsharedFd socket, Bytes received);
  /// Reads, answers, sends. False when the connection is at its end.
  bool advance(Asked& asked);
  bool receive(Asked& asked);
  void drop(int fd);
  void drop_late();
  void refuse_busy(int socket) const;
  Bytes answer(const PeerRequest& request);

  const Bytes busy_;  ///< the answer that says so
  ChannelToken token_{};
  std::mutex handlers_mutex_;
  std::map<std::string, Handler> handlers_;
  base::WakeEvent wake_;
  bool stopped_ = false;
  stream::EventLoop loop_;
  std::vector<std::unique_ptr<Asked>> asked_;  ///< the oldest first
  stream::Timer late_;
  std::unique_ptr<stream::Admission> door_;
  std::uint16_t port_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddp::world
