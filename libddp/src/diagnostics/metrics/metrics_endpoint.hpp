// Serves a node's metrics over HTTP, to who asks for a name of this host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "stream/admission.hpp"
#include "stream/event_loop.hpp"
#include "stream/strangers.hpp"

namespace ddp::diagnostics {

// Where Prometheus asks for a node's metrics: a listening socket and a few short connections, without a thread, in
// whichever loop its process has.

/// "127.0.0.1", "::1": an address that a socket can have, not a name.
bool is_numeric_address(const std::string& text);

/// What strangers may take of the process that serves.
struct MetricsLimits {
  std::size_t connections = 16;                 ///< beyond it, a new one takes the place of another
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
  MetricsEndpoint& operator=(MetricsEndpoint&&) = delete;
  ~MetricsEndpoint();

  /// Readable when serve() has something to do.
  int fd() const { return loop_.fd(); }
  /// Accepts, reads and writes what can be without waiting. A render() that throws is answered by 500.
  void serve();

  std::uint16_t port() const { return port_; }
  /// "http://127.0.0.1:9464/metrics"
  std::string url() const;
  std::size_t connections() const { return connections_.size(); }

 private:
  struct Connection;

  void take_in(base::UniqueFd socket, const sockaddr_storage& from);
  void close(std::uint64_t number);
  void react(std::uint64_t number);
  /// @return whether the connection goes on.
  bool advance(Connection& connection);
  bool read(Connection& connection);
  bool write(Connection& connection);
  void answer(Connection& connection);
  std::shared_ptr<const std::string> page();
  void close_overdue();

  const std::string address_;
  const Render render_;
  const MetricsLimits limits_;
  const std::vector<std::string> domains_;
  stream::EventLoop loop_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;  ///< the oldest first
  std::uint64_t last_ = 0;
  stream::Strangers strangers_;
  stream::Timer overdue_;
  stream::Acceptor acceptor_;
  std::uint16_t port_ = 0;
  std::shared_ptr<const std::string> page_;
  Deadline page_end_;
};

// What a client of the metrics endpoint asks for: HTTP's GET of one path, and nothing else.

/// Beyond it, a request is refused. Prometheus sends some 300 bytes.
inline constexpr std::size_t kMostRequestBytes = 4096;

enum class HttpVerdict {
  incomplete,    ///< more is to come
  metrics,       ///< 200
  malformed,     ///< 400
  unknown_path,  ///< 404
  wrong_method,  ///< 405
  foreign_host,  ///< 421: the client means another host, see metrics_endpoint.hpp
  too_large,     ///< 431
  wrong_version  ///< 505
};

/// @param received all that has come so far. @param domains of this host
HttpVerdict judge_request(std::string_view received, const std::vector<std::string>& domains = {});

/// "404 Not Found". Not for incomplete.
std::string_view status_line(HttpVerdict verdict);

// Names by which a host is asked for its own pages. A browser on the host, or in its network, sends the name of the
// page that it shows: one that an attacker has made lead here (DNS rebinding) is none of them.

/// The host's domains: of its name, and those of /etc/resolv.conf. In lower case.
std::vector<std::string> own_domains();
/// Those of a text in the form of /etc/resolv.conf.
std::vector<std::string> domains_in(std::string_view resolver);

/// Whether a Host header's value, with or without port, is an address, localhost, a name without a domain, or one in
/// @p domains.
bool is_own_host(std::string_view host, const std::vector<std::string>& domains);

}  // namespace ddp::diagnostics
