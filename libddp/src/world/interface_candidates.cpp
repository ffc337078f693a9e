#include "world/interface_candidates.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/unique_fd.hpp"
#include "topology/ifname_list.hpp"

namespace ddp::world {
namespace {

// Names are resolved one after another, and a resolver may take seconds for a name that nobody knows.
constexpr std::size_t kPeersToTry = 3;
// 192.0.2.1 is of TEST-NET-1 (RFC 5737), which no host has: asking for it gives the default route.
constexpr const char* kNobody = "192.0.2.1";

using Interfaces = std::vector<topology::InterfaceFact>;

std::string describe(const NetworkInterface& interface) {
  std::vector<std::string> addresses;
  for (const InterfaceAddress& address : interface.addresses) addresses.push_back(address.address);
  return fmt::format("{} ({})", interface.name,
                     addresses.empty() ? "no address" : fmt::format("{}", fmt::join(addresses, ", ")));
}

[[noreturn]] void refuse(ErrorCode code, const Interfaces& interfaces, std::string cause, std::string_view advice) {
  std::vector<std::string> names;
  for (const auto& fact : interfaces) names.push_back(describe(fact.interface));
  throw Error{{.code = code,
               .attempted = fmt::format("choosing the network interface on host {}", base::host_name()),
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = fmt::format("{}there are: {}", advice,
                                   names.empty() ? "none" : fmt::to_string(fmt::join(names, ", ")))}};
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
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(reinterpret_cast<const sockaddr*>(&local), size, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  return std::nullopt;
}

bool in_comma_list(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const auto comma = list.find(',');
    if (list.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

struct UserChoice {
  std::string reason;
  std::set<std::string> names;
};

/// Interfaces that the user's variables leave; nothing if there is no such variable.
std::optional<UserChoice> user_choice(const base::Environment& environment, const Interfaces& interfaces) {
  for (const char* variable : {"DDP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const auto list = environment.raw(variable);
    if (!list || list->empty()) continue;
    const bool nccl = std::string_view{variable} == "NCCL_SOCKET_IFNAME";
    UserChoice choice{.reason = fmt::format("{}={} names it", variable, *list), .names = {}};
    for (const auto& [interface, pci] : interfaces) {
      const bool named = nccl ? topology::names_interface(*list, interface.name) : in_comma_list(*list, interface.name);
      // NCCL skips loopback only by default; a list of what not to take would let it in (horovod#700).
      const bool wanted = !(nccl && list->front() == '^' && interface.kind == InterfaceKind::loopback);
      if (named && wanted && !interface.addresses.empty()) choice.names.insert(interface.name);
    }
    if (choice.names.empty()) {
      refuse(ErrorCode::invalid_argument, interfaces,
             fmt::format("{}={} names no interface of this host that has an address", variable, *list),
             fmt::format("correct or unset {}; ", variable));
    }
    return choice;
  }
  return std::nullopt;
}

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

bool is_fabric(const topology::InterfaceFact& fact, const std::vector<topology::RdmaFact>& rdma) {
  return fact.pci && std::any_of(rdma.begin(), rdma.end(), [&](const topology::RdmaFact& device) {
           return device.pci == fact.pci && std::any_of(device.ports.begin(), device.ports.end(),
                                                        [](const NicPort& port) { return port.state == "ACTIVE"; });
         });
}

/// The addresses of this host from which peers are reached, the first one being the best evidence.
std::vector<std::pair<std::string, std::string>> routed_addresses(const std::vector<std::string>& peer_hosts) {
  std::vector<std::pair<std::string, std::string>> found;
  for (std::size_t i = 0; i < std::min(peer_hosts.size(), kPeersToTry); ++i) {
    if (auto source = source_address_towards(peer_hosts[i])) {
      found.emplace_back(std::move(*source), fmt::format("it routes to {}", peer_hosts[i]));
    }
  }
  if (auto source = source_address_towards(kNobody)) found.emplace_back(std::move(*source), "it has the default route");
  return found;
}

CandidateSearch loopback_only(const Interfaces& interfaces) {
  for (const auto& [interface, pci] : interfaces) {
    if (interface.kind != InterfaceKind::loopback || interface.addresses.empty()) continue;
    return {.candidates = {{.interface = interface.name, .at = {.address = interface.addresses.front()}}},
            .reason = "all ranks are on this host",
            .rejected = {}};
  }
  return {};
}

}  // namespace

CandidateSearch find_candidates(const base::Environment& environment, const Interfaces& interfaces,
                                const std::vector<topology::RdmaFact>& rdma, const std::vector<std::string>& peer_hosts,
                                JobSpan span) {
  const auto by_user = user_choice(environment, interfaces);
  if (!by_user && span == JobSpan::one_node) {
    if (CandidateSearch search = loopback_only(interfaces); !search.candidates.empty()) return search;
  }
  CandidateSearch search;
  for (const auto& fact : interfaces) {
    const NetworkInterface& interface = fact.interface;
    if (by_user) {
      if (by_user->names.count(interface.name) == 0) continue;
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
  if (search.candidates.empty() && span == JobSpan::unknown) search = loopback_only(interfaces);
  if (search.candidates.empty()) {
    refuse(ErrorCode::unavailable, interfaces, "no interface can reach other hosts",
           "bring one up (ip link, ip addr), or name one with DDP_SOCKET_IFNAME; ");
  }
  if (search.candidates.size() == 1) {  // resolving names could not choose another
    if (search.reason.empty())
      search.reason = by_user ? by_user->reason : "it is the only one that can reach other hosts";
    return search;
  }

  std::string routed_by;
  for (auto& [address, reason] : routed_addresses(peer_hosts)) {
    for (InterfaceCandidate& candidate : search.candidates) {
      if (candidate.at.address.address != address || !routed_by.empty()) continue;
      candidate.at.routes_to_peers = true;
      routed_by = std::move(reason);
    }
  }
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

}  // namespace ddp::world
