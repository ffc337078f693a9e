#include "topology/network/route_lookup.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>

#include "base/abandonable_call.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::topology {
namespace {

// One that resolves is enough; others are tried if the first name is unknown here.
constexpr std::size_t kPeersToTry = 3;
// A healthy resolver needs milliseconds, and its first retry comes after five seconds (resolv.conf(5)).
constexpr std::chrono::seconds kPatience{3};
// 192.0.2.1 is of TEST-NET-1 (RFC 5737), which no host has: asking for it gives the default route.
constexpr const char* kUnassigned = "192.0.2.1";

/// The address from which packets to @p host would be sent: that of a UDP socket that is connected to it.
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
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(reinterpret_cast<const sockaddr*>(&local), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  return std::nullopt;
}

std::vector<Route> look_up(const std::vector<std::string>& hosts) {
  std::vector<Route> routes;
  for (std::size_t i = 0; i < std::min(hosts.size(), kPeersToTry); ++i) {
    if (auto source = source_address_towards(hosts[i])) {
      routes.push_back({.source = std::move(*source), .reason = "it routes to " + hosts[i]});
    }
  }
  if (auto source = source_address_towards(kUnassigned)) {
    routes.push_back({.source = std::move(*source), .reason = "it has the default route"});
  }
  return routes;
}

}  // namespace

std::vector<Route> find_routes(const std::vector<std::string>& hosts) {
  if (auto routes = base::abandonable_call([hosts] { return look_up(hosts); }, Deadline::after(kPatience))) {
    return *std::move(routes);
  }
  base::log(base::LogLevel::warning,
            "the resolver does not answer, so routes to other hosts are not considered when the interface is chosen; "
            "DDP_SOCKET_IFNAME names one");
  return {};
}

}  // namespace ddp::topology
