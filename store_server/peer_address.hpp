// Addresses of clients and of this host, and the ends of a connection.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace ddp::store_server {

// A client's address, and an end of a connection.

/// An IP address without port and scope. IPv4 is held as IPv4-mapped IPv6, so that both forms compare equal.
class PeerAddress {
 public:
  using Bytes = std::array<std::uint8_t, 16>;

  PeerAddress() = default;  ///< "::"
  explicit PeerAddress(const Bytes& bytes) : bytes_(bytes) {}
  /// Empty for text that is not a numeric address. A scope ("fe80::1%eth0") is ignored.
  static std::optional<PeerAddress> parse(const std::string& text);
  /// Empty for other families than AF_INET and AF_INET6.
  static std::optional<PeerAddress> of(const sockaddr_storage& address);

  bool is_loopback() const;
  bool is_v4() const;
  /// In network byte order.
  const Bytes& bytes() const { return bytes_; }
  std::string text() const;
  friend auto operator<=>(const PeerAddress&, const PeerAddress&) = default;

 private:
  Bytes bytes_{};
};

/// One end of a TCP connection.
struct Endpoint {
  PeerAddress address;
  std::uint16_t port = 0;
  std::uint32_t interface = 0;  ///< index, for link-local addresses; else 0

  /// Empty for other families than AF_INET and AF_INET6.
  static std::optional<Endpoint> of(const sockaddr_storage& address);
  /// The ends of a socket. Empty where it is not connected.
  static std::optional<Endpoint> own(int fd);
  static std::optional<Endpoint> other(int fd);
  /// "10.0.0.1:4711", "[fe80::1]:4711"
  std::string text() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// The addresses of this host, in its network namespace.

/// Of the interfaces, loopback included. Empty where they cannot be read.
std::vector<PeerAddress> own_addresses();

/// Knows them, and reads them anew when it does not know one, at most once a second.
class OwnAddresses {
 public:
  bool contain(const PeerAddress& address);

 private:
  std::set<PeerAddress> known_;
  std::chrono::steady_clock::time_point read_at_{};
};

}  // namespace ddp::store_server
