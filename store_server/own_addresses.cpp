#include "store_server/own_addresses.hpp"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

namespace ddp::store_server {
namespace {

constexpr std::chrono::seconds kReadAgain{1};

}  // namespace

std::vector<PeerAddress> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list{first, &::freeifaddrs};
  std::vector<PeerAddress> addresses;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const bool v4 = entry->ifa_addr->sa_family == AF_INET;
    if (!v4 && entry->ifa_addr->sa_family != AF_INET6) continue;
    sockaddr_storage address{};
    std::memcpy(&address, entry->ifa_addr, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (const auto found = PeerAddress::of(address)) addresses.push_back(*found);
  }
  return addresses;
}

bool OwnAddresses::contain(const PeerAddress& address) {
  if (address.is_loopback() || known_.contains(address)) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!known_.empty() && now - read_at_ < kReadAgain) return false;
  read_at_ = now;
  const std::vector<PeerAddress> found = own_addresses();
  known_ = {found.begin(), found.end()};
  return known_.contains(address);
}

}  // namespace ddp::store_server
