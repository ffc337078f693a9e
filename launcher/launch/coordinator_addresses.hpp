// Where a coordinator listens whose agents are told how to reach it: not in networks in which none of them is.
#pragma once

#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "options/launch_options.hpp"
#include "topology/inventory/live_facts.hpp"

namespace ddp::launcher {

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

/// Of a step's first task, which leads; the others get @p own: of OwnNetwork, by --local-addr where it is given.
std::vector<std::string> step_addresses(const std::vector<std::string>& own, const LaunchOptions& options,
                                        const base::Environment& environment);

}  // namespace ddp::launcher
