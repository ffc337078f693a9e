// Packets between nodes: whether an address is reached, whether packets as large as its interface's MTU arrive, and how
// fast.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "doctor/facts.hpp"

namespace ddp::tools::doctor {

/// A node's addresses that others probe, at most four, so that the descriptors last.
inline constexpr std::size_t kMostListeners = 4;

/// Listens at a node's addresses: TCP connections are left in the queue, UDP packets that carry the token are answered
/// with their size. Nothing is kept of either. Threads: one, from construction to destruction.
class ProbeAnswers {
 public:
  /// @param wanted without ports; addresses that cannot be listened at are left out. Throws Error(system).
  explicit ProbeAnswers(const std::vector<ProbeListener>& wanted);
  ~ProbeAnswers();
  ProbeAnswers(const ProbeAnswers&) = delete;
  ProbeAnswers& operator=(const ProbeAnswers&) = delete;

  const std::vector<ProbeListener>& listeners() const;  ///< with ports
  const Bytes& token() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ProbeTarget {
  int to_node = 0;
  ProbeListener listener;
  Bytes token;
};

/// Probes all targets at once. A target is done when it was reached, its largest packet answered, and a train of
/// packets (packet_train.hpp) was as fast as the interfaces allow, or several were not; @p deadline ends the others. @p
/// own the interfaces of this node, for MTU and speed of the one by which packets leave.
std::vector<ProbeResult> probe(const std::vector<ProbeTarget>& targets, const std::vector<InterfaceFacts>& own,
                               Deadline deadline);

/// Which nodes a node probes: all others up to 17 nodes, else those at distances of powers of two, so that each is
/// probed by several.
std::vector<int> probed_nodes(int node, int num_nodes);

}  // namespace ddp::tools::doctor
