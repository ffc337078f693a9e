#include "store_server/peer_address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include <fmt/format.h>

namespace ddp::store_server {
namespace {

constexpr std::array<std::uint8_t, 12> kMappedPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_mapped(const std::array<std::uint8_t, 16>& bytes) {
  return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin());
}

}  // namespace

std::optional<PeerAddress> PeerAddress::parse(const std::string& text) {
  PeerAddress result;
  std::uint8_t* const bytes = result.bytes_.data();
  if (::inet_pton(AF_INET, text.c_str(), bytes + kMappedPrefix.size()) == 1) {
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), bytes);
    return result;
  }
  if (::inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), bytes) == 1) return result;
  return std::nullopt;
}

std::optional<PeerAddress> PeerAddress::of(const sockaddr_storage& address) {
  PeerAddress result;
  std::uint8_t* const bytes = result.bytes_.data();
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), bytes);
    std::memcpy(bytes + kMappedPrefix.size(), &v4.sin_addr, sizeof v4.sin_addr);
    return result;
  }
  if (address.ss_family == AF_INET6) {
    std::memcpy(bytes, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, result.bytes_.size());
    return result;
  }
  return std::nullopt;
}

bool PeerAddress::is_v4() const { return is_mapped(bytes_); }

bool PeerAddress::is_loopback() const {
  if (is_mapped(bytes_)) return bytes_[kMappedPrefix.size()] == 127;
  static constexpr std::array<std::uint8_t, 16> kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return bytes_ == kLoopback;
}

std::string PeerAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> out{};
  const bool v4 = is_mapped(bytes_);
  ::inet_ntop(v4 ? AF_INET : AF_INET6, bytes_.data() + (v4 ? kMappedPrefix.size() : 0), out.data(), out.size());
  return out.data();
}

std::optional<Endpoint> Endpoint::of(const sockaddr_storage& address) {
  const auto host = PeerAddress::of(address);
  if (!host) return std::nullopt;
  if (address.ss_family == AF_INET) {
    return Endpoint{
        .address = *host, .port = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port), .interface = 0};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return Endpoint{.address = *host, .port = ntohs(v6.sin6_port), .interface = v6.sin6_scope_id};
}

std::optional<Endpoint> Endpoint::own(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  return of(address);
}

std::optional<Endpoint> Endpoint::other(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  return of(address);
}

std::string Endpoint::text() const {
  return address.is_v4() ? fmt::format("{}:{}", address.text(), port) : fmt::format("[{}]:{}", address.text(), port);
}

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
