#include "base/connection_source.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ddp::base {
namespace {

using Address = std::array<std::uint8_t, 16>;

constexpr std::size_t kNetworkBytes = 8;
constexpr std::size_t kMappedBytes = 12;
constexpr Address kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Address kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

template <class Shares>
auto find_share(Shares& shares, const ConnectionSource& source) {
  return std::find_if(shares.begin(), shares.end(), [&](const auto& each) { return each.source == source; });
}

}  // namespace

ConnectionSource source_of(const Address& ipv6) {
  if (std::equal(kMapped.begin(), kMapped.begin() + kMappedBytes, ipv6.begin()))
    return {ipv6[kMappedBytes] == 127 ? kLoopback : ipv6};
  if (ipv6 == kLoopback) return {ipv6};
  ConnectionSource network;
  std::copy_n(ipv6.begin(), kNetworkBytes, network.bytes.begin());
  return network;
}

ConnectionSource source_of(const sockaddr_storage& address) {
  Address ipv6 = kMapped;
  if (address.ss_family == AF_INET) {
    const in_addr& ipv4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    std::memcpy(ipv6.data() + kMappedBytes, &ipv4, sizeof ipv4);
  } else {
    std::memcpy(ipv6.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, ipv6.size());
  }
  return source_of(ipv6);
}

void SourceShares::add(const ConnectionSource& source) {
  if (const auto found = find_share(shares_, source); found != shares_.end()) {
    ++found->connections;
  } else {
    shares_.push_back({.source = source, .connections = 1});
  }
}

void SourceShares::remove(const ConnectionSource& source) {
  if (const auto found = find_share(shares_, source); --found->connections == 0) shares_.erase(found);
}

std::size_t SourceShares::of(const ConnectionSource& source) const {
  const auto found = find_share(shares_, source);
  return found == shares_.end() ? 0 : found->connections;
}

ConnectionSource SourceShares::largest() const {
  const auto fewer = [](const Share& a, const Share& b) { return a.connections < b.connections; };
  return std::max_element(shares_.begin(), shares_.end(), fewer)->source;
}

}  // namespace ddp::base
