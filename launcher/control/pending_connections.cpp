#include "control/pending_connections.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace ddp::launcher::control {
namespace {

constexpr std::size_t kIpv6NetworkBytes = 8;
constexpr std::size_t kIpv4Bytes = 4;

std::string ipv4_source(std::string bytes) { return bytes.front() == 127 ? "loopback" : bytes; }

}  // namespace

std::string source_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    std::string bytes(kIpv4Bytes, '\0');
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr, bytes.size());
    return ipv4_source(std::move(bytes));
  }
  const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  const std::string_view bytes{reinterpret_cast<const char*>(ipv6.s6_addr), sizeof ipv6.s6_addr};
  if (IN6_IS_ADDR_V4MAPPED(&ipv6)) return ipv4_source(std::string{bytes.substr(bytes.size() - kIpv4Bytes)});
  return IN6_IS_ADDR_LOOPBACK(&ipv6) ? "loopback" : std::string{bytes.substr(0, kIpv6NetworkBytes)};
}

PendingConnections::Place PendingConnections::most_crowding() {
  const auto most = std::max_element(shares_.begin(), shares_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::find_if(list_.begin(), list_.end(),
                      [&](const PendingConnection& connection) { return connection.source == most->first; });
}

PendingConnections::Place PendingConnections::add(PendingConnection connection) {
  ++shares_[connection.source];
  list_.push_back(std::move(connection));
  return std::prev(list_.end());
}

void PendingConnections::erase(Place place) {
  if (const auto share = shares_.find(place->source); --share->second == 0) shares_.erase(share);
  list_.erase(place);
}

std::optional<PendingConnections::Place> PendingConnections::find(std::uint64_t number) {
  const auto found = std::find_if(list_.begin(), list_.end(),
                                  [&](const PendingConnection& connection) { return connection.number == number; });
  return found == list_.end() ? std::nullopt : std::optional{found};
}

}  // namespace ddp::launcher::control
