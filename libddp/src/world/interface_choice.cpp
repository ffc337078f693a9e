#include "world/interface_choice.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace ddp::world {
namespace {

// Names are resolved one after another, and a resolver may take seconds for a name that nobody knows.
constexpr std::size_t kPeersToTry = 3;

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

/// The address from which packets to @p host would be sent. Connecting a UDP socket asks the routing table; nothing is
/// sent.
std::optional<std::string> source_address_towards(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  wanted.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &wanted, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const base::UniqueFd fd{::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    if (!fd || ::connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) continue;
    sockaddr_storage local{};
    socklen_t size = sizeof local;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    const std::string text = numeric(reinterpret_cast<const sockaddr*>(&local), size);
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

std::optional<InterfaceChoice> user_choice(const base::Environment& environment,
                                           const std::vector<NetworkInterface>& interfaces) {
  for (const auto* variable : {"DDP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    const auto wanted = environment.raw(variable);
    if (!wanted || wanted->empty()) continue;
    for (const NetworkInterface& interface : interfaces) {
      if (interface.name == *wanted) {
        return InterfaceChoice{interface.name, interface.address, fmt::format("{} names it", variable)};
      }
    }
    std::vector<std::string> names;
    for (const NetworkInterface& interface : interfaces) {
      names.push_back(fmt::format("{} ({})", interface.name, interface.address));
    }
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = "choosing the network interface",
         .cause = fmt::format("{}={} names no interface of this host that is up and has an address", variable, *wanted),
         .native = {},
         .ranks = {},
         .hint = fmt::format("there are: {}", fmt::join(names, ", "))}};
  }
  return std::nullopt;
}

std::optional<InterfaceChoice> choice_by_address(const std::vector<NetworkInterface>& interfaces,
                                                 const std::optional<std::string>& address, std::string reason) {
  if (!address) return std::nullopt;
  for (const NetworkInterface& interface : interfaces) {
    if (interface.address == *address && !interface.loopback) {
      return InterfaceChoice{interface.name, interface.address, std::move(reason)};
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<NetworkInterface> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw base::system_error("listing the network interfaces (getifaddrs)", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if ((entry->ifa_flags & IFF_UP) == 0) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr)) {
        continue;
      }
      const bool known = std::any_of(interfaces.begin(), interfaces.end(),
                                     [&](const NetworkInterface& seen) { return seen.name == entry->ifa_name; });
      if (known) continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      interfaces.push_back({entry->ifa_name, numeric(entry->ifa_addr, size), (entry->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return interfaces;
}

InterfaceChoice choose_interface(const base::Environment& environment, const std::vector<NetworkInterface>& interfaces,
                                 const std::vector<std::string>& peer_hosts, bool single_node) {
  if (auto choice = user_choice(environment, interfaces)) return *choice;
  if (single_node) {
    for (const NetworkInterface& interface : interfaces) {
      if (interface.loopback) return {interface.name, interface.address, "all ranks are on this host"};
    }
  }
  const auto usable = [](const NetworkInterface& interface) { return !interface.loopback; };
  if (std::count_if(interfaces.begin(), interfaces.end(), usable) == 1) {  // resolving names could not choose another
    const auto only = std::find_if(interfaces.begin(), interfaces.end(), usable);
    return {only->name, only->address, "it is the only one besides loopback"};
  }
  for (std::size_t i = 0; i < std::min(peer_hosts.size(), kPeersToTry); ++i) {
    auto choice = choice_by_address(interfaces, source_address_towards(peer_hosts[i]),
                                    fmt::format("it routes to {}", peer_hosts[i]));
    if (choice) return *choice;
  }
  // 192.0.2.1 is of TEST-NET-1 (RFC 5737), which no host has: asking for it gives the default route
  if (auto choice = choice_by_address(interfaces, source_address_towards("192.0.2.1"), "it has the default route")) {
    return *choice;
  }
  for (const NetworkInterface& interface : interfaces) {
    if (!interface.loopback) {
      return {interface.name, interface.address, "it is the first that is up and is not loopback"};
    }
  }
  if (!interfaces.empty()) return {interfaces[0].name, interfaces[0].address, "it is the only one"};
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "choosing the network interface",
               .cause = "no interface of this host is up and has an address",
               .native = {},
               .ranks = {},
               .hint = "bring one up (ip link, ip addr); ranks of one host need at least lo"}};
}

}  // namespace ddp::world
