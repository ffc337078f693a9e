#include "stream/strangers.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ddp::stream {
namespace {

using Address = std::array<std::uint8_t, 16>;

constexpr std::size_t kNetworkBytes = 8;
constexpr std::size_t kMappedBytes = 12;
constexpr Address kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Address kLoopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

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
  } else if (address.ss_family == AF_INET6) {
    std::memcpy(ipv6.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, ipv6.size());
  }
  return source_of(ipv6);
}

void SourceShares::add(const ConnectionSource& source) {
  Share& share = shares_[source];
  if (++share.connections == 1) share.number = ++arrivals_;
}

void SourceShares::remove(const ConnectionSource& source) {
  if (const auto found = shares_.find(source); --found->second.connections == 0) shares_.erase(found);
}

std::size_t SourceShares::of(const ConnectionSource& source) const {
  const auto found = shares_.find(source);
  return found == shares_.end() ? 0 : found->second.connections;
}

ConnectionSource SourceShares::largest() const {
  const auto less = [](const auto& a, const auto& b) {
    const Share& one = a.second;
    const Share& other = b.second;
    return one.connections != other.connections ? one.connections < other.connections : one.number > other.number;
  };
  return std::max_element(shares_.begin(), shares_.end(), less)->first;
}

void Strangers::add(Number number, const ConnectionSource& source, bool known) {
  all_.emplace(number, Stranger{.source = source, .since = Deadline::Clock::now(), .known = known});
  try {
    silent_.insert(number);
    if (known) return;
    shares_.add(source);
    ++crowd_;
  } catch (...) {
    silent_.erase(number);
    all_.erase(number);
    throw;
  }
}

void Strangers::remove(Number number) {
  recognize(number);
  silent_.erase(number);
  all_.erase(number);
}

void Strangers::believe(Number number) {
  if (const auto found = all_.find(number); found != all_.end()) found->second.believed = true;
}

void Strangers::recognize(Number number) {
  const auto found = all_.find(number);
  if (found == all_.end() || found->second.known) return;
  found->second.known = true;
  shares_.remove(found->second.source);
  --crowd_;
}

std::optional<Strangers::Number> Strangers::most_crowding() const {
  if (crowd_ == 0) return std::nullopt;
  const ConnectionSource source = shares_.largest();
  std::optional<Number> oldest;
  for (const auto& [number, each] : all_) {
    if (each.known || each.source != source) continue;
    if (!each.believed) return number;
    if (!oldest) oldest = number;
  }
  return oldest;
}

std::optional<Strangers::Number> Strangers::oldest_known() const {
  const auto found = std::find_if(all_.begin(), all_.end(), [](const auto& each) { return each.second.known; });
  return found == all_.end() ? std::nullopt : std::optional{found->first};
}

std::optional<Deadline> Strangers::next_end() const {
  if (all_.empty()) return std::nullopt;
  const Deadline end{all_.begin()->second.since + limits_.patience};
  if (silent_.empty()) return end;
  return earlier(end, Deadline{all_.at(*silent_.begin()).since + limits_.silence});
}

std::optional<Strangers::Late> Strangers::late() const {
  const auto end = next_end();
  if (!end || !end->expired()) return std::nullopt;
  const Number oldest = all_.begin()->first;
  if (silent_.empty()) return Late{.number = oldest};
  if (silent_.contains(oldest)) return Late{.number = oldest, .silent = true};
  const bool of_patience = Deadline{all_.begin()->second.since + limits_.patience}.expired();
  return of_patience ? Late{.number = oldest} : Late{.number = *silent_.begin(), .silent = true};
}

}  // namespace ddp::stream
