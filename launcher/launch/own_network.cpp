#include "launch/own_network.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "launch/host_agents.hpp"
#include "placement/network_choice.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/hostlist.hpp"
#include "topology/network/interface_agreement.hpp"

namespace ddp::launcher {
namespace {

// A healthy resolver needs milliseconds; its first retry comes after five seconds (resolv.conf(5)).
constexpr std::chrono::seconds kResolverPatience{8};

std::vector<topology::InterfaceFact> interfaces() { return topology::read_usable_interfaces(); }

/// Hosts that must be reachable.
std::vector<std::string> peer_hosts(const std::string& rendezvous_host, const base::Environment& environment,
                                    Deadline deadline) {
  std::vector<std::string> hosts;
  if (!rendezvous_host.empty() && !is_own_name(rendezvous_host, deadline)) hosts.push_back(rendezvous_host);
  // another rule covers jobs without other hosts
  for (std::string& node : other_nodes(environment).value_or(std::vector<std::string>{}))
    hosts.push_back(std::move(node));
  return hosts;
}

/// Slurm's compressed lists: of the step, perhaps inherited from the task that started this job, of the job, and of all
/// components of a heterogeneous job. Empty if one is missing.
std::optional<std::vector<std::string>> node_lists(const base::Environment& environment) {
  std::vector<std::string> lists;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = environment.raw(name)) lists.push_back(*list);
  }
  const int components = environment.number("SLURM_HET_SIZE").value_or(1);
  for (int i = 0; components > 1 && i < components; ++i) {
    const auto list = environment.raw(fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", i));
    if (!list) return std::nullopt;
    lists.push_back(*list);
  }
  return lists.empty() ? std::nullopt : std::optional{std::move(lists)};
}

Deadline patience() { return Deadline::after(kResolverPatience); }

}  // namespace

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::vector<std::string> own_addresses() {
  std::vector<std::string> own;
  for (const topology::InterfaceFact& fact : interfaces()) {
    for (const InterfaceAddress& address : fact.interface.addresses) own.push_back(address.address);
  }
  return own;
}

std::vector<std::string> numeric_addresses(const std::string& host, Deadline deadline, int flags) {
  std::vector<std::string> addresses;
  try {
    const base::AddressList list =
        base::resolve(host, 0, flags, fmt::format("looking up the host '{}'", host), deadline);
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      char text[NI_MAXHOST];
      if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 &&
          std::find(addresses.begin(), addresses.end(), text) == addresses.end())  // /etc/hosts may have it twice
        addresses.emplace_back(text);
    }
  } catch (const Error& error) {
    const bool hangs = error.code() == ErrorCode::timeout;
    base::log(hangs ? base::LogLevel::warning : base::LogLevel::debug, "{}", error.what());
  }
  return addresses;
}

std::optional<std::vector<std::string>> other_nodes(const base::Environment& environment) {
  const auto lists = node_lists(environment);
  if (!lists) return std::nullopt;
  const std::string self = environment.raw("SLURMD_NODENAME").value_or("");
  std::vector<std::string> nodes;
  std::set<std::string> seen;
  try {
    for (const std::string& list : *lists) {
      for (std::string& name : topology::expand_hostlist(list)) {
        if (name != self && seen.insert(name).second) nodes.push_back(std::move(name));
      }
    }
  } catch (const Error& error) {
    base::log(base::LogLevel::info, "{}", error.what());
    return std::nullopt;
  }
  return nodes;
}

std::vector<std::string> resolve_local_addr(const std::string& local_addr) {
  std::vector<std::string> addresses = numeric_addresses(local_addr, patience());
  if (addresses.empty()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading --local-addr",
                 .cause = fmt::format("the host name '{}' cannot be resolved", local_addr),
                 .hint = "check the name, or give an IP address of this host"}};
  }
  return addresses;
}

OwnNetwork own_network(const std::string& local_addr, const std::string& rendezvous_host,
                       const base::Environment& environment, Deadline deadline) {
  OwnNetwork own;
  const auto add = [&own](const std::string& address) {
    if (std::find(own.addresses.begin(), own.addresses.end(), address) == own.addresses.end())
      own.addresses.push_back(address);
  };
  if (!local_addr.empty()) {
    for (const std::string& address : resolve_local_addr(local_addr)) {
      // Some distributions give the host's own name 127.0.1.1 in /etc/hosts, which means nothing to other nodes.
      if (!is_loopback(address)) add(address);
    }
  }
  try {
    const NodeNetwork network = read_node_network(environment, peer_hosts(rendezvous_host, environment, deadline));
    own.interfaces = interfaces_of(network.candidates);
    for (const control::Interface& each : own.interfaces) add(each.address);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw;
    base::log(base::LogLevel::info, "{}", error.what());
  }
  for (const topology::InterfaceFact& fact : interfaces()) {
    if (fact.interface.kind == InterfaceKind::loopback) continue;
    for (const InterfaceAddress& address : fact.interface.addresses) add(address.address);
  }
  if (own.addresses.empty()) add("127.0.0.1");
  return own;
}

std::vector<std::string> listening_addresses(const std::string& host, Deadline deadline) {
  const Deadline limit = earlier(deadline, patience());
  const std::vector<std::string> own = own_addresses();
  std::vector<std::string> here;
  for (std::string& address : numeric_addresses(host, limit)) {
    if (is_loopback(address) || std::find(own.begin(), own.end(), address) != own.end())
      here.push_back(std::move(address));
  }
  const bool is_name = !means_localhost(host) && numeric_addresses(host, limit, AI_NUMERICHOST).empty();
  const bool known_here = !here.empty() || base::same_host_name(host, base::host_name());
  if (is_name && known_here && std::all_of(here.begin(), here.end(), is_loopback)) return {""};
  if (here.empty() && means_localhost(host) && !is_loopback(host)) return {"127.0.0.1"};
  return here;
}

bool is_own_name(const std::string& host, Deadline deadline) { return !listening_addresses(host, deadline).empty(); }

bool means_localhost(const std::string& host) {
  return is_loopback(host) || base::same_host_name(host.substr(0, host.find('.')), "localhost") ||
         base::same_host_name(host, "ip6-localhost") || base::same_host_name(host, "ip6-loopback");
}

base::Environment without_interface_names(const base::Environment& environment) {
  auto variables = environment.variables();
  for (const char* name : {"DDP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) variables.erase(name);
  return base::Environment{std::move(variables)};
}

namespace {

// A healthy resolver answers hundreds of names in this time.
constexpr std::chrono::seconds kUniteLimit{1};

/// Stands for this host in the messages below.
constexpr const char* kHere = "this host";

}  // namespace

std::string unite_hosts(std::vector<HostEntry>& hosts, const HostKnowledge& known) {
  std::map<std::string, std::size_t> places;  // in `united`, by address
  std::vector<HostEntry> united;
  std::vector<std::string> same;
  for (HostEntry& host : hosts) {
    std::vector<std::string> addresses = known.addresses(host.name);
    host.here = is_this_host(host.name) || std::any_of(addresses.begin(), addresses.end(), known.is_own);
    if (host.here) addresses.emplace_back(kHere);
    const auto met = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const std::string& address) { return places.contains(address); });
    const std::size_t place = met != addresses.end() ? places.at(*met) : united.size();
    for (const std::string& address : addresses) places.emplace(address, place);
    if (place == united.size()) {
      united.push_back(std::move(host));
      continue;
    }
    HostEntry& first = united[place];
    if (host.ranks == 0 || !host.here)
      same.push_back(fmt::format("'{}' is '{}'{}", host.name, first.name, host.here ? "" : fmt::format(" ({})", *met)));
    first.ranks = std::min(first.ranks + host.ranks, kMaxRanksPerNode);
    first.max_ranks = first.max_ranks > 0 && host.max_ranks > 0 ? first.max_ranks + host.max_ranks : 0;
  }
  hosts = std::move(united);
  return same.empty() ? std::string{}
                      : fmt::format("the host list names hosts twice, which count as one: {}", fmt::join(same, ", "));
}

std::string unite_hosts(std::vector<HostEntry>& hosts) {
  const Deadline deadline = Deadline::after(kUniteLimit);
  const std::vector<std::string> own = own_addresses();
  return unite_hosts(hosts,
                     {.addresses =
                          [&](const std::string& host) {
                            return deadline.expired() ? std::vector<std::string>{} : numeric_addresses(host, deadline);
                          },
                      .is_own =
                          [&](const std::string& address) {
                            return is_loopback(address) || std::find(own.begin(), own.end(), address) != own.end();
                          }});
}

namespace {

using topology::InterfaceFact;
using topology::Subnet;

// For all names. A healthy resolver answers hundreds per second.
constexpr std::chrono::seconds kLookUpLimit{2};

bool is_in_subnet(const std::string& host, const InterfaceAddress& of) {
  InterfaceAddress there = of;
  there.address = host;
  const auto subnet = Subnet::of(there);
  return subnet && subnet == Subnet::of(of);
}

bool shares_subnet(const InterfaceFact& fact, const std::vector<std::string>& host) {
  return std::any_of(host.begin(), host.end(), [&fact](const std::string& address) {
    const auto& own = fact.interface.addresses;
    return std::any_of(own.begin(), own.end(),
                       [&](const InterfaceAddress& each) { return is_in_subnet(address, each); });
  });
}

}  // namespace

std::vector<std::string> addresses_towards(const std::vector<std::string>& own,
                                           const std::vector<InterfaceFact>& interfaces,
                                           const std::vector<std::vector<std::string>>& hosts) {
  std::set<std::string> shared;
  std::set<std::string> useless;
  for (const auto& host : hosts) {
    bool known = false;
    for (const InterfaceFact& fact : interfaces) {
      if (fact.interface.kind == InterfaceKind::loopback || !shares_subnet(fact, host)) continue;
      known = true;
      shared.insert(fact.interface.name);
    }
    if (!known) return own;
  }
  if (shared.empty()) return own;
  for (const InterfaceFact& fact : interfaces) {
    if (shared.contains(fact.interface.name)) continue;
    for (const InterfaceAddress& address : fact.interface.addresses) useless.insert(address.address);
  }
  std::vector<std::string> left = own;
  std::erase_if(left, [&useless](const std::string& address) { return useless.contains(address); });
  return left.empty() ? own : left;
}

std::vector<std::string> coordinator_addresses(const std::vector<std::string>& own,
                                               const std::vector<std::string>& hosts) {
  const std::vector<InterfaceFact> interfaces = topology::read_usable_interfaces();
  const auto chosen = std::count_if(interfaces.begin(), interfaces.end(), [&own](const InterfaceFact& fact) {
    const auto& addresses = fact.interface.addresses;
    return std::any_of(addresses.begin(), addresses.end(), [&own](const InterfaceAddress& address) {
      return std::find(own.begin(), own.end(), address.address) != own.end();
    });
  });
  if (chosen <= 1) return own;  // names could not change the choice
  const Deadline deadline = Deadline::after(kLookUpLimit);
  std::vector<std::vector<std::string>> found;
  for (const std::string& host : hosts) {
    found.push_back(numeric_addresses(host, deadline));
    if (found.back().empty()) return own;
  }
  return addresses_towards(own, interfaces, found);
}

std::vector<std::string> frontend_addresses(const LaunchOptions& options, bool by_hosts,
                                            const base::Environment& environment) {
  if (!options.local_addr.empty()) {
    std::vector<std::string> given = resolve_local_addr(options.local_addr);
    // Some distributions give the host's own name this address in /etc/hosts, which means nothing to other nodes.
    const bool useless_name = given.size() == 1 && given.front() == "127.0.1.1" && options.local_addr != given.front();
    if (!useless_name) return given;
  }
  // The environment names an interface of the nodes; this host may not have it.
  const base::Environment without_names = without_interface_names(environment);
  std::vector<std::string> others;
  if (!by_hosts) {
    others = other_nodes(environment).value_or(std::vector<std::string>{});
    return coordinator_addresses(own_network("", "", without_names).addresses, others);
  }
  for (const HostEntry& host : options.hosts) {
    if (!host.here && !is_this_host(host.name)) others.push_back(host.name);
  }
  if (others.empty()) return {"127.0.0.1"};
  return coordinator_addresses(own_network("", others.front(), without_names).addresses, others);
}

std::vector<std::string> step_addresses(const std::vector<std::string>& own, bool leads, const LaunchOptions& options,
                                        const base::Environment& environment) {
  if (!leads || !options.local_addr.empty()) return own;
  return coordinator_addresses(own, other_nodes(environment).value_or(std::vector<std::string>{}));
}

}  // namespace ddp::launcher
