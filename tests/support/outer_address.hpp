// An address with which tests are another source than loopback.
#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

namespace ddp::test {

/// An IPv4 address of this host that is not loopback; empty if there is none.
inline std::string outer_address() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner{list, &::freeifaddrs};
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(*one->ifa_addr);
    if ((ntohl(v4.sin_addr.s_addr) >> 24) == 127) continue;
    std::array<char, INET_ADDRSTRLEN> out{};
    return ::inet_ntop(AF_INET, &v4.sin_addr, out.data(), out.size());
  }
  return {};
}

}  // namespace ddp::test
