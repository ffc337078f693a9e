#include "launch/coordinator_addresses.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include <ddp/deadline.hpp>

#include "launch/host_agents.hpp"
#include "launch/own_network.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/interface_agreement.hpp"

namespace ddp::launcher {
namespace {

using topology::InterfaceFact;
using topology::Subnet;

// For all names. A healthy resolver answers hundreds in a second.
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
  if (chosen <= 1) return own;  // names could change nothing
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
  // The interface in the environment is one of the nodes'; this host need not have it.
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

std::vector<std::string> step_addresses(const std::vector<std::string>& own, const LaunchOptions& options,
                                        const base::Environment& environment) {
  const bool leads = environment.number("SLURM_PROCID").value_or(-1) == 0;
  if (!leads || !options.local_addr.empty()) return own;
  return coordinator_addresses(own, other_nodes(environment).value_or(std::vector<std::string>{}));
}

}  // namespace ddp::launcher
