// Which interfaces NCCL will take, predicted as its misc/socket.cc chooses them (2.28 to 2.30).
#pragma once

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

}  // namespace ddp::tools::doctor
