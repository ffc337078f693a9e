// A client's address.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace ddp::store_server {

/// An IP address without port and scope. IPv4 is held as IPv4-mapped IPv6, so that both forms compare equal.
class PeerAddress {
 public:
  /// Empty for text that is not a numeric address. A scope ("fe80::1%eth0") is ignored.
  static std::optional<PeerAddress> parse(const std::string& text);
  /// Empty for other families than AF_INET and AF_INET6.
  static std::optional<PeerAddress> of(const sockaddr_storage& address);

  bool is_loopback() const;
  std::string text() const;
  friend auto operator<=>(const PeerAddress&, const PeerAddress&) = default;

 private:
  std::array<std::uint8_t, 16> bytes_{};
};

}  // namespace ddp::store_server
