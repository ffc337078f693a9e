// Who takes part in the job: agents join until there are enough, and then have their order. Decides and does nothing
// itself, so that every course of events can be tested without processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"

namespace ddp::launcher {

struct MembershipRules {
  int min_nodes = 1;
  int max_nodes = 1;
  std::string run_id;
  std::string version;  ///< of libddp, which all must have
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{30'000};  ///< for more than min_nodes, once those are there
  bool replaceable = false;                     ///< another agent may come for one that was lost before the start
};

/// Agents are named by numbers that the caller chooses.
class Membership {
 public:
  Membership(MembershipRules rules, Deadline::Clock::time_point now);

  /// Why this agent cannot take part, with both sides' values where they disagree; empty: it has joined.
  std::string join(int agent, const control::Hello& hello, Deadline::Clock::time_point now);
  /// @return whether it had joined.
  bool leave(int agent);

  /// A node will never come: the job is complete without it, if the fewest are still possible.
  /// @return whether they are.
  bool give_up_one();

  /// torchrun's last-call rule (B27): all places are taken, or the fewest are and the last call is over.
  bool complete(Deadline::Clock::time_point now) const;
  /// Fewer than min_nodes when the time to join is over.
  bool failed(Deadline::Clock::time_point now) const;
  /// When to ask again though nobody came; nothing when only the number of members counts.
  std::optional<Deadline> next_deadline() const;

  bool enough() const { return num_members() >= rules_.min_nodes; }
  int num_members() const { return static_cast<int>(members_.size()); }
  const MembershipRules& rules() const { return rules_; }
  /// "2 of 4 nodes have joined: n0, n3".
  std::string describe() const;

  struct Member {
    int agent;
    control::Hello hello;
  };
  /// By node rank: those that said their order (SLURM_NODEID, --node-rank) by it, else by host name with numbers in it
  /// compared as numbers (node2 before node10), then by the order in which they joined.
  std::vector<Member> in_order() const;

 private:
  MembershipRules rules_;
  std::vector<Member> members_;
  Deadline join_deadline_;
  std::optional<Deadline> last_call_;
};

}  // namespace ddp::launcher
