// Candidate interfaces of this host: the user's, else those that reach other hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ddp/devices.hpp>

#include "base/env_table.hpp"
#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

/// An address of an interface as other ranks judge it.
struct CandidateAddress {
  InterfaceAddress address;
  bool fabric = false;           ///< of an adapter with an RDMA device
  bool routes_to_peers = false;  ///< packets to other hosts of the job, or by the default route, leave here
  std::uint32_t rate_mbps = 0;   ///< Mbit/s; 0 if unknown
  friend bool operator==(const CandidateAddress&, const CandidateAddress&) = default;
};

struct InterfaceCandidate {
  std::string interface;  ///< "eth0"
  CandidateAddress at;
};

struct CandidateSearch {
  std::vector<InterfaceCandidate> candidates;  ///< never empty, best first, at most kMostCandidates
  std::string reason;                          ///< one sentence about the first one
  bool loopback_fallback = false;              ///< loopback only, for JobSpan::unknown: useless between nodes
  std::vector<std::string> rejected{};         ///< "docker0 (172.17.0.1): reaches only this host"
};

/// What is known about where the ranks run.
enum class JobSpan { one_node, unknown, several_nodes };

inline constexpr std::size_t kMostCandidates = 6;

/// @param interfaces, rdma as read_interfaces and read_rdma_devices give them.
/// @param peer_hosts names or addresses of other hosts of the job, as far as known.
/// One node: loopback. Several: what is up, has an address and is not known to reach this host only; DDP_SOCKET_IFNAME,
/// GLOO_SOCKET_IFNAME (comma-separated exact names) and NCCL_SOCKET_IFNAME (NCCL's syntax) leave what they name, in
/// this order of precedence, whatever its kind.
/// Throws Error with the host's name and the interfaces there are: invalid_argument when one of these variables names
/// none of them; unavailable when nothing is left.
CandidateSearch find_candidates(const base::Environment& environment, const std::vector<InterfaceFact>& interfaces,
                                const std::vector<RdmaFact>& rdma, const std::vector<std::string>& peer_hosts,
                                JobSpan span);

// From which address of this host packets to other hosts leave.

struct Route {
  std::string source;  ///< numeric address of this host
  std::string reason;  ///< "it routes to n1"
};

/// For the first hosts of @p hosts that can be resolved, then for the default route; the best evidence first. Asks the
/// resolver and the routing table; sends nothing to the hosts. A resolver that does not answer within seconds is
/// abandoned with its thread (getaddrinfo(3) has no deadline); then nothing is found.
std::vector<Route> find_routes(const std::vector<std::string>& hosts);

// The network interface over which a rank is reached.

struct SocketInterface {
  std::string name{};     ///< "eth0"; empty: none was chosen
  std::string address{};  ///< numeric
  std::string reason{};   ///< one sentence
  friend bool operator==(const SocketInterface&, const SocketInterface&) = default;
};

}  // namespace ddp::topology
