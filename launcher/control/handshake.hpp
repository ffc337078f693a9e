// Control connections between hosts: both ends prove that they belong together, before anything else. What follows is
// encrypted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/connection.hpp"
#include "stream/handshake.hpp"

namespace ddp::launcher::control {

using stream::Announcement;
using stream::job_secret_prover;
using stream::job_secret_provers;
using stream::ProofMethod;
using stream::Prover;
using stream::Provers;
using stream::Salt;
using stream::Secret;
using stream::SecretProver;

/// The line end of its magic shows whether something on the way rewrites lines.
inline constexpr stream::Protocol kProtocol{
    .magic = "ddpctl\r\n", .version = kProtocolVersion, .name = "ddprun's protocol", .listener = "coordinator"};

inline constexpr std::size_t kMaxPending = 512;
/// Where so many agents may connect at once.
constexpr std::size_t max_pending(std::size_t agents) { return std::max(kMaxPending, agents); }

/// The accepting side's listening sockets and the connections that have not authenticated yet. Never blocks. A
/// connection that is not done in time, that sends anything else, or one too many of them (kMaxPending) is closed
/// without an answer; what is wrong is logged at most once a second. Only a greeting of another protocol version is
/// answered with ours, so that the other side can name both.
class Listener {
 public:
  /// Listens at @p port (0: the kernel chooses) of all @p addresses, of which some may not be usable; "" stands for all
  /// of this host's ([::] where there is IPv6, else 0.0.0.0). Throws Error(system), with EADDRINUSE explained;
  /// invalid_argument for no address.
  /// @param patience for a connection to authenticate
  /// @param silence for its first byte
  Listener(const std::vector<std::string>& addresses, std::uint16_t port, std::shared_ptr<Prover> prover,
           std::chrono::milliseconds patience = std::chrono::seconds(10),
           std::chrono::milliseconds silence = std::chrono::seconds(5));
  /// For agents that have got the job's secret.
  Listener(const std::string& address, std::uint16_t port, const Secret& secret,
           std::chrono::milliseconds patience = std::chrono::seconds(10),
           std::chrono::milliseconds silence = std::chrono::seconds(5));
  ~Listener();

  /// So many agents may connect at once: as many connections may be unproven, if that is more than kMaxPending, but no
  /// more than half of the descriptors.
  void expect(std::size_t agents);
  std::uint16_t port() const;
  /// Numeric: "127.0.0.1:29400".
  std::vector<std::string> addresses() const;
  /// Descriptors to watch for reading: one, which stays the same whatever connections come and go; none after close().
  std::vector<int> fds() const;
  /// To be called when one of fds() is readable: new proven connections. Their peers are numeric addresses
  /// ("10.1.2.3:40122").
  std::vector<Connection> accept_ready();
  /// Stops listening and closes what has not authenticated.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The connecting side: tries @p addresses in turn, again and again until @p deadline, since the other side may start
/// later. An address is a name or numeric. Throws Error: unavailable with all addresses and what happened at each
/// ("refused", "no answer": a firewall), protocol when the other side is no coordinator or of another protocol version
/// (both are named), conflict when one side does not believe the other or @p provers has nothing for it. The latter two
/// once an address has said so three times.
/// @param connect_limit for the TCP connection to one address, so that a firewall that drops packets does not use up
/// the time for the others
/// @param tried called after each round with what happened at the addresses
Connection connect(const std::vector<std::string>& addresses, std::uint16_t port, const Provers& provers,
                   Deadline deadline, std::chrono::milliseconds connect_limit = std::chrono::seconds(3),
                   const std::function<void(std::string cause)>& tried = {});
/// With the job's secret.
Connection connect(const std::vector<std::string>& addresses, std::uint16_t port, const Secret& secret,
                   Deadline deadline, std::chrono::milliseconds connect_limit = std::chrono::seconds(3));

}  // namespace ddp::launcher::control
