// The addresses of this host, under which names others know it, and which the coordinator offers.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "control/messages.hpp"
#include "options/launch_options.hpp"
#include "topology/inventory/live_facts.hpp"

namespace ddp::launcher {

// What this host tells other nodes about its network: the addresses at which they reach it, and the interfaces for
// traffic between ranks.

/// The numeric addresses of --local-addr, at which the store of a single host listens. Throws Error(invalid_argument)
/// for a name that cannot be resolved.
std::vector<std::string> resolve_local_addr(const std::string& local_addr);

struct OwnNetwork {
  /// Numeric, best first: the one that the user gave, those of `interfaces`, then all others but loopback. A host that
  /// has none but loopback is given as 127.0.0.1.
  std::vector<std::string> addresses;
  std::vector<control::Interface> interfaces;  ///< best first; empty when nothing reaches other hosts
};

/// @param local_addr --local-addr; may be empty. The other hosts of the job are taken from the environment of the Slurm
/// job, or are @p rendezvous_host. Throws Error(invalid_argument) when the user has named an interface or a host that
/// does not exist.
OwnNetwork own_network(const std::string& local_addr, const std::string& rendezvous_host,
                       const base::Environment& environment,
                       Deadline deadline = Deadline::after(std::chrono::minutes(1)));
/// The names of the nodes of the Slurm step and job, of all its components, without this one. Nothing where they are
/// not known.
std::optional<std::vector<std::string>> other_nodes(const base::Environment& environment);
/// Numeric addresses of a host, by the resolver; none where it knows none or does not answer by @p deadline, which is
/// logged. @param flags of getaddrinfo(3)
std::vector<std::string> numeric_addresses(const std::string& host, Deadline deadline, int flags = 0);
/// The same environment without the names of interfaces that the user has chosen.
base::Environment without_interface_names(const base::Environment& environment);

/// Of this host's interfaces, loopback among them.
std::vector<std::string> own_addresses();
/// Whether a numeric address is loopback's.
bool is_loopback(const std::string& address);
/// Whether @p host is what each host calls itself: localhost, 127.0.0.1, ::1.
bool means_localhost(const std::string& host);

/// Whether @p host is a name or an address of this host; so is each loopback address, such as 127.0.1.1, which some
/// distributions give the host's name in /etc/hosts. The resolver has until @p deadline, and a few seconds at most.
bool is_own_name(const std::string& host, Deadline deadline = Deadline::after(std::chrono::minutes(1)));

/// Where to listen so that others who look up @p host come to this one: those of its addresses that are this host's.
/// {""}, which is all of them, for this host's own name where it has only loopback addresses here (see above): other
/// hosts find others. Empty: it is another host's name or address.
std::vector<std::string> listening_addresses(const std::string& host,
                                             Deadline deadline = Deadline::after(std::chrono::minutes(1)));

// Which entries of a host list mean the same host, and which mean this one: names with and without domain or in another
// case, aliases, and addresses.

/// What is known of hosts, from the resolver and from this host's interfaces.
struct HostKnowledge {
  std::function<std::vector<std::string>(const std::string& host)> addresses;  ///< numeric; none: not known
  std::function<bool(const std::string& address)> is_own;
};

/// Makes one entry of those whose addresses meet, or that all mean this host, at the place of the first: their ranks
/// add up. Sets HostEntry::here. @return a remark where entries without numbers, so that the job has fewer ranks by
/// that, or other hosts' became one; else empty
std::string unite_hosts(std::vector<HostEntry>& hosts, const HostKnowledge& known);

/// The same with this host's resolver, which has a second for all names: those that it does not know by then stay
/// apart.
std::string unite_hosts(std::vector<HostEntry>& hosts);

// Where a coordinator listens whose agents are told how to reach it: not in networks in which none of them is.

/// Of @p own, without the addresses of interfaces of which no host is in a subnet. All of @p own where a host is in no
/// subnet of this host: then a gateway is on the way, and any address may be the one.
/// @param own numeric addresses of this host, @param interfaces its interfaces
/// @param hosts numeric addresses of each other host; one that has none, or loopback ones alone, is unknown
std::vector<std::string> addresses_towards(const std::vector<std::string>& own,
                                           const std::vector<topology::InterfaceFact>& interfaces,
                                           const std::vector<std::vector<std::string>>& hosts);

/// addresses_towards() these hosts, whose names are looked up. All of @p own where a look-up fails or takes too long.
std::vector<std::string> coordinator_addresses(const std::vector<std::string>& own,
                                               const std::vector<std::string>& hosts);

/// Of a frontend: --local-addr alone, else by the nodes of the Slurm job or, @p by_hosts, by the host list. Throws like
/// resolve_local_addr().
std::vector<std::string> frontend_addresses(const LaunchOptions& options, bool by_hosts,
                                            const base::Environment& environment);

/// Of a step's first task, which @p leads; the others get @p own: of OwnNetwork, by --local-addr where it is given.
std::vector<std::string> step_addresses(const std::vector<std::string>& own, bool leads, const LaunchOptions& options,
                                        const base::Environment& environment);

}  // namespace ddp::launcher
