// Who is in a group and how each member is reached.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "world/peer_channel.hpp"
#include "world/peer_questions.hpp"

namespace ddp::collectives {

/// In rank order.
struct GroupMembers {
  std::string name{};                              ///< the same on all members, unique in the job
  int rank = 0;                                    ///< own rank in the group
  std::vector<int> global_ranks{};                 ///< of each member in the world
  std::vector<world::PeerEndpoint> endpoints{};    ///< of each member; unused for the own rank
  std::vector<int> nodes{};                        ///< of each member, numbered in the job; empty: all on one
  std::shared_ptr<world::PeerChannel> channel;     ///< null in a group of one
  std::chrono::milliseconds peer_timeout{30'000};  ///< DDP_PEER_TIMEOUT

  int size() const noexcept { return static_cast<int>(global_ranks.size()); }
  int global(int member) const { return global_ranks[static_cast<std::size_t>(member)]; }
  bool same_node(int one, int other) const {
    return nodes.empty() || nodes[static_cast<std::size_t>(one)] == nodes[static_cast<std::size_t>(other)];
  }
  /// Members on this rank's node, itself included.
  int on_own_node() const {
    if (nodes.empty()) return size();
    return static_cast<int>(std::count(nodes.begin(), nodes.end(), nodes[static_cast<std::size_t>(rank)]));
  }
};

}  // namespace ddp::collectives
