// Mutual proof of the job's secret, before anything else on a control connection: strangers learn and can do nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "control/connection.hpp"

namespace ddp::launcher::control {

/// 32 random bytes, or the BLAKE2b hash of a text where no random secret can be handed on. Wiped on destruction.
class Secret {
 public:
  static Secret random();
  static Secret from_text(const std::string& text);
  static Secret from_hex(const std::string& hex);  ///< throws Error(invalid_argument)
  std::string to_hex() const;
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  Secret() = default;
  std::array<std::uint8_t, 32> bytes_{};
};

/// The accepting side's listening socket and the connections that have not authenticated yet. Each side sends a
/// greeting (magic, protocol version, 32-byte nonce), then HMAC-SHA-512-256 (libsodium's crypto_auth) of both greetings
/// and its role under the secret; the connecting side first. Never blocks. A connection that is not done in time,
/// that sends anything else, or one too many of them (64; the oldest goes, when it is older than a second; until then
/// the newest wait in the kernel's queue) is closed without an answer; what is wrong is logged at most once a second.
/// Only a greeting of another protocol version is answered with ours, so that the other side can name both.
class Listener {
 public:
  /// Listens on all addresses ([::] where there is IPv6, else 0.0.0.0) or on @p address when it is not empty, at @p
  /// port (0: the kernel chooses). Throws Error(system), with EADDRINUSE explained; invalid_argument for no address.
  /// @param patience for a connection to authenticate
  Listener(const std::string& address, std::uint16_t port, const Secret& secret,
           std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~Listener();

  std::uint16_t port() const;
  /// Descriptors to watch for reading: one, which stays the same whatever connections come and go; none after close().
  std::vector<int> fds() const;
  /// To be called when one of fds() is readable, and at next_deadline(): new proven connections. Their peers are
  /// numeric addresses ("10.1.2.3:40122").
  std::vector<Connection> accept_ready();
  std::optional<Deadline> next_deadline() const;
  /// Stops listening and closes what has not authenticated.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The connecting side: tries @p addresses in turn, again and again until @p deadline, since the other side may start
/// later. An address is a name or numeric. Throws Error: unavailable with all addresses and what happened at each
/// ("refused", "no answer": a firewall), protocol when the other side is no coordinator or of another protocol version
/// (both are named), conflict when the secret is not the same. The latter two once an address has said so three times.
/// @param connect_limit for the TCP connection to one address, so that a firewall that drops packets does not use up
/// the time for the others
Connection connect(const std::vector<std::string>& addresses, std::uint16_t port, const Secret& secret,
                   Deadline deadline, std::chrono::milliseconds connect_limit = std::chrono::seconds(3));

}  // namespace ddp::launcher::control
