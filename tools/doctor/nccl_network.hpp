// What NCCL will use of the network: interfaces and RDMA ports, predicted as its misc/socket.cc and net_ib.cc choose
// them (2.28 to 2.30).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts.hpp"

namespace ddp::tools::doctor {

/// An interface with the address that NCCL takes of it.
struct SocketChoice {
  const InterfaceFacts* interface = nullptr;  ///< points into the argument
  InterfaceAddress address;
};

/// At most 16, in NCCL's order: bootstrap uses the first, the socket transport all. Empty: NCCL finds none and fails.
/// @param variables of the process: NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY.
std::vector<SocketChoice> predict_socket_interfaces(const std::vector<InterfaceFacts>& interfaces,
                                                    const Variables& variables);

/// An interface of a node that ranks use.
struct UsedInterface {
  const NodeRecord* node = nullptr;
  SocketChoice choice;
  std::vector<int> ranks{};    ///< of the node that use it
  bool for_bootstrap = false;  ///< it is NCCL's first one on some of them
};

/// What NCCL will use, each interface of each node once; points into @p job.
std::vector<UsedInterface> used_by_nccl(const JobFacts& job);
/// What libddp chooses on each node, by its candidates; nodes without any are left out.
std::vector<UsedInterface> used_by_libddp(const JobFacts& job);

/// Whether packets that leave by it stay on this host or link: loopback, docker, virbr, veth ends, link-local only.
bool is_local_only(const SocketChoice& choice);

/// What the other nodes found at an address of the node; those of nodes that did not probe it are left out.
struct Reachability {
  std::vector<const NodeRecord*> tried;
  std::vector<const NodeRecord*> failed;
  ProbeEnd worst = ProbeEnd::reached;
};
Reachability reachability(const JobFacts& job, const NodeRecord& node, const std::string& address);

/// A pair of nodes, and whether what was tried between them failed.
struct NodePair {
  int from = 0;
  int to = 0;
  bool failed = false;
};
/// By node: whether everything from and to it failed, though others succeeded: then it is at fault, not those that it
/// was tried with.
std::vector<bool> nodes_at_fault(const std::vector<NodePair>& pairs, std::size_t num_nodes);

/// Position of the node in its job.
int number_of(const JobFacts& job, const NodeRecord& node);

bool is_active(const RdmaPortFacts& port);

/// Active ports that NCCL_IB_HCA allows; points into @p node.
std::vector<const RdmaPortFacts*> taken_by_nccl(const NodeRecord& node, const RankFacts& rank);

/// NCCL_IB_DISABLE as NCCL reads it: "true" is 0.
bool rdma_is_disabled(const RankFacts& rank);

/// Whether packets to a RoCE port's address pass routers and NCCL would choose it by itself: RoCE v2, of the given
/// family, and not link-local.
bool is_usable(const GidFacts& gid, bool ipv6);

/// From this version on NCCL chooses a RoCE port's address; before, it took row 0 unless told otherwise.
inline constexpr Version kChoosesGid{.major = 2, .minor = 21, .patch = 0};

/// The row of a RoCE port's table of addresses that NCCL takes, as its net_ib/connect.cc chooses it
/// (ncclIbGetGidIndex). Nothing where that may be one of those that were left out. @param version of NCCL; empty if
/// unknown
std::optional<int> predict_gid(const RdmaPortFacts& port, const RankFacts& rank, const std::string& version);
/// The row of that index; null if it is empty, or left out.
const GidFacts* row_at(const RdmaPortFacts& port, long long index);
/// NCCL_IB_GID_INDEX as NCCL reads it; -1: it chooses.
long long wanted_gid(const RankFacts& rank);

/// The network in which a port is, if it does not lead on to others: a subnet without a gateway, or an InfiniBand
/// subnet. Empty: unknown.
std::string network_of(const JobFacts& job, const RankFacts& rank, const RdmaPortFacts& port);

/// NCCL_IB_HCA's names, without the signs before them and the ports.
std::vector<std::string> names_in_list(std::string_view list);
/// What is wrong with a name in the rank's NCCL_IB_HCA; empty: each is an active adapter.
std::string missing_adapter(const NodeRecord& node, const RankFacts& rank);
/// The same of any rank.
bool misses_adapter(const JobFacts& job);

/// @param name of a network, as in NCCL_NET
bool network_is_socket(std::string name);

/// Whether the rank's data goes over RDMA.
bool takes_rdma(const NodeRecord& node, const RankFacts& rank);

}  // namespace ddp::tools::doctor
