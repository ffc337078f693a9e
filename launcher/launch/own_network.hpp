// What this host tells other nodes about its network: the addresses at which they reach it, and the interfaces for
// traffic between ranks.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "control/messages.hpp"

namespace ddp::launcher {

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

}  // namespace ddp::launcher
