#include "topology/network/interface_candidates.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::topology {
namespace {

using Interfaces = std::vector<InterfaceFact>;

/// Why an interface cannot connect nodes; empty if it may.
std::string_view obstacle(const NetworkInterface& interface) {
  switch (interface.kind) {
    case InterfaceKind::loopback:
    case InterfaceKind::host_only: return "reaches only this host";
    case InterfaceKind::bond_slave: return "is part of a bond";
    case InterfaceKind::hardware:
    case InterfaceKind::bond:
    case InterfaceKind::vlan:
    case InterfaceKind::bridge:
    case InterfaceKind::tunnel:
    case InterfaceKind::other: break;
  }
  if (!interface.up) return "is down";
  return interface.addresses.empty() ? "has no address" : "";
}

bool is_fabric(const InterfaceFact& fact, const std::vector<RdmaFact>& rdma) {
  return fact.pci && std::any_of(rdma.begin(), rdma.end(), [&](const RdmaFact& device) {
           return device.pci == fact.pci && std::any_of(device.ports.begin(), device.ports.end(),
                                                        [](const NicPort& port) { return port.state == "ACTIVE"; });
         });
}

CandidateSearch loopback_only(const Interfaces& interfaces) {
  for (const auto& [interface, pci] : interfaces) {
    if (interface.kind != InterfaceKind::loopback || interface.addresses.empty()) continue;
    return {.candidates = {{.interface = interface.name, .at = {.address = interface.addresses.front()}}},
            .reason = "all ranks are on this host",
            .loopback_fallback = false};
  }
  return {};
}

/// Marks the candidate that the best of the routes leaves from, and makes that route's address the candidate's: an
/// interface may have several, and peers may be reached by IPv6. Returns the route's reason; empty if no route matches.
std::string mark_route(std::vector<InterfaceCandidate>& candidates, const std::vector<NetworkInterface>& interfaces,
                       const std::vector<Route>& routes) {
  for (const Route& route : routes) {
    for (InterfaceCandidate& candidate : candidates) {
      const auto interface = std::find_if(interfaces.begin(), interfaces.end(),
                                          [&](const auto& each) { return each.name == candidate.interface; });
      for (const InterfaceAddress& address : interface->addresses) {
        if (address.address != route.source) continue;
        candidate.at.address = address;
        candidate.at.routes_to_peers = true;
        return route.reason;
      }
    }
  }
  return {};
}

}  // namespace

CandidateSearch find_candidates(const base::Environment& environment, const Interfaces& interfaces,
                                const std::vector<RdmaFact>& rdma, const std::vector<std::string>& peer_hosts,
                                JobSpan span) {
  std::vector<NetworkInterface> known;
  for (const auto& fact : interfaces) known.push_back(fact.interface);
  const auto by_user = interfaces_named_by_user(environment, known);
  if (!by_user && span == JobSpan::one_node) {
    if (CandidateSearch search = loopback_only(interfaces); !search.candidates.empty()) return search;
  }
  CandidateSearch search;
  for (const auto& fact : interfaces) {
    const NetworkInterface& interface = fact.interface;
    if (by_user) {
      if (std::find(by_user->names.begin(), by_user->names.end(), interface.name) == by_user->names.end()) continue;
    } else if (const auto why_not = obstacle(interface); !why_not.empty()) {
      search.rejected.push_back(fmt::format("{}: {}", describe(interface), why_not));
      continue;
    }
    search.candidates.push_back({.interface = interface.name,
                                 .at = {.address = interface.addresses.front(),
                                        .fabric = is_fabric(fact, rdma),
                                        .routes_to_peers = false,
                                        .rate_mbps = static_cast<std::uint32_t>(interface.rate_gbps * 1000)}});
  }
  if (search.candidates.empty() && span == JobSpan::unknown) {
    search = loopback_only(interfaces);
    search.loopback_fallback = true;
  }
  if (search.candidates.empty()) {
    refuse_interfaces(ErrorCode::unavailable, known, "no interface can reach other hosts",
                      "bring one up (ip link, ip addr), or name one with DDP_SOCKET_IFNAME; ");
  }
  if (search.candidates.size() == 1) {  // resolving names could not choose another
    if (search.reason.empty())
      search.reason = by_user ? by_user->reason : "it is the only one that can reach other hosts";
    return search;
  }

  const std::string routed_by = mark_route(search.candidates, known, find_routes(peer_hosts));
  std::stable_sort(search.candidates.begin(), search.candidates.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.at.fabric, a.at.routes_to_peers, a.at.rate_mbps) >
           std::tuple(b.at.fabric, b.at.routes_to_peers, b.at.rate_mbps);
  });
  const CandidateAddress& best = search.candidates.front().at;
  search.reason = best.fabric            ? "its adapter is made for clusters (RDMA)"
                  : best.routes_to_peers ? routed_by
                                         : "it is the first that is up and can reach other hosts";
  if (by_user) search.reason = fmt::format("{}, and {}", by_user->reason, search.reason);
  if (search.candidates.size() > kMostCandidates) search.candidates.resize(kMostCandidates);
  return search;
}

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
