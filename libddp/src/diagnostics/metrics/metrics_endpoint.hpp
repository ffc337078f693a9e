// Where Prometheus asks for a node's metrics: a listening socket and a few short connections, without a thread, in
// whichever loop its process has.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::diagnostics {

/// "127.0.0.1", "::1": an address that a socket can have, not a name.
bool is_numeric_address(const std::string& text);

/// What strangers may take of the process that serves.
struct MetricsLimits {
  std::size_t connections = 16;                 ///< beyond it, a new one takes the place of the oldest
  int accepted_at_once = 16;                    ///< in a call of serve()
  std::chrono::milliseconds connection{5'000};  ///< from connecting to the end of the answer
  std::chrono::milliseconds reuse{1'000};       ///< the same answer goes to all who ask within it
};

/// Answers `GET /metrics` and refuses everything else; one request a connection. Not thread-safe.
class MetricsEndpoint {
 public:
  /// Makes an answer's body, in the text format 0.0.4.
  using Render = std::function<std::string()>;

  /// Listens on @p address (numeric) and @p port; 0: one of the kernel's choice. Throws Error(system), for example
  /// where the port is taken.
  MetricsEndpoint(const std::string& address, std::uint16_t port, Render render, MetricsLimits limits = {});
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;
  ~MetricsEndpoint();

  /// Readable when serve() has something to do.
  int fd() const { return events_.get(); }
  /// Accepts, reads and writes what can be without waiting. A render() that throws is answered by 500.
  void serve();

  std::uint16_t port() const { return port_; }
  /// "http://127.0.0.1:9464/metrics"
  std::string url() const;
  std::size_t connections() const { return connections_.size(); }

 private:
  struct Connection;
  using Place = std::list<std::unique_ptr<Connection>>::iterator;

  void watch(int fd, std::uint32_t events, void* tag, int operation);
  void accept_some();
  void close(Place place);
  /// @return whether the connection goes on.
  bool advance(Connection& connection);
  bool read(Connection& connection);
  bool write(Connection& connection);
  void answer(Connection& connection);
  std::shared_ptr<const std::string> page();
  void arm_timer();
  void close_overdue();

  const std::string address_;
  const Render render_;
  const MetricsLimits limits_;
  const std::vector<std::string> domains_;
  base::UniqueFd events_;  ///< epoll of all that follow
  base::UniqueFd timer_;   ///< runs while there are connections, or it rests
  base::UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::list<std::unique_ptr<Connection>> connections_;  ///< the oldest first
  bool rests_ = false;                                  ///< accepts nothing until the timer fires
  std::shared_ptr<const std::string> page_;
  Deadline page_end_;
};

}  // namespace ddp::diagnostics
