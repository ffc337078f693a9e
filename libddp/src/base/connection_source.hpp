// Where connections come from, and which source has the most: what a listener with too many strangers closes first, so
// that a source that floods it crowds out only itself.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::base {

/// An IPv4 address, an IPv6 network of 64 bits, or all of the loopback addresses: as IPv6 address, so that IPv4-mapped
/// ones compare equal. All the addresses that one host can easily have are one source.
struct ConnectionSource {
  std::array<std::uint8_t, 16> bytes{};
  friend bool operator==(const ConnectionSource&, const ConnectionSource&) = default;
};

/// @param ipv6 in network byte order, IPv4 mapped
ConnectionSource source_of(const std::array<std::uint8_t, 16>& ipv6);
/// Of AF_INET or AF_INET6.
ConnectionSource source_of(const sockaddr_storage& address);

/// How many connections each source has. Takes time linear in the number of sources.
class SourceShares {
 public:
  /// Up to @p sources, add() needs no memory.
  explicit SourceShares(std::size_t sources = 0) { shares_.reserve(sources); }

  void add(const ConnectionSource& source);
  /// It must have been added.
  void remove(const ConnectionSource& source);
  void clear() { shares_.clear(); }
  std::size_t of(const ConnectionSource& source) const;
  /// The source with the most; of several, the one that has had connections for the longest. There must be one.
  ConnectionSource largest() const;

 private:
  struct Share {
    ConnectionSource source;
    std::size_t connections;
  };
  std::vector<Share> shares_;  // in the order of arrival
};

}  // namespace ddp::base
