// Joins the nodes' PMIx servers into one job: fences across nodes, which ranks they lack, and direct modex requests to
// other nodes.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include <ddp/bytes.hpp>

#include "control/messages.hpp"
#include "coordinator/absence_inquiries.hpp"

namespace ddp::launcher {

/// For one attempt. Nodes are named by node rank. Returns what to send, and sends nothing.
class ModexRouter {
 public:
  /// @param ranks_per_node by node rank; ranks of a node are consecutive.
  ModexRouter(int epoch, std::vector<int> ranks_per_node);

  /// A message and the node that must get it.
  using Parcel = std::pair<int, control::Message>;
  using Outgoing = std::vector<Parcel>;

  /// A fence is complete when each node that has one of its ranks has contributed; each then gets all contributions in
  /// the order of the nodes, as an Encoded whose bytes they share. Nodes may enter the next fence of the same ranks
  /// before others have left the last.
  Outgoing fence(int from_node, control::Fence contribution);
  Outgoing request(int from_node, control::ModexRequest request);
  Outgoing reply(control::ModexReply reply);

  /// Which ranks are not in the fence of all ranks in which some of @p from_node wait.
  Outgoing find_absent(int from_node, const control::FindAbsent& question, AbsenceInquiries::Time now);
  AbsenceInquiries& absences() { return absences_; }
  const AbsenceInquiries& absences() const { return absences_; }

 private:
  int node_of(int rank) const;  ///< -1: there is no such rank

  int epoch_;
  std::vector<int> first_rank_;  ///< by node rank, and the world size at the end
  /// By the participating ranks: each node's contributions to fences that are not complete, oldest first.
  std::map<std::vector<int>, std::map<int, std::deque<Bytes>>> open_;
  AbsenceInquiries absences_;
};

}  // namespace ddp::launcher
