// Which nodes take part in a job, and in which order. It only decides, so that it can be tested without processes.
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
  std::string version;  ///< of libddp: the same on all nodes
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{30'000};  ///< for more nodes, once min_nodes have joined
  bool replaceable = false;                     ///< another agent may take the place of one lost before the start
};

struct Member {
  int agent;  ///< the number that join() was given
  control::Hello hello;
  int id = 0;  ///< the same in all rosters of the job, and never another's: ranks change with the roster
};

/// The nodes of one attempt, by node rank.
struct Roster {
  int generation;  ///< counts the rosters of a job, from 0
  std::vector<Member> nodes;
};

/// Agents are named by numbers that the caller chooses.
class Membership {
 public:
  Membership(MembershipRules rules, Deadline::Clock::time_point now);

  /// @return why this agent cannot take part, with both sides' values where they disagree; empty: it has joined
  std::string join(int agent, const control::Hello& hello, Deadline::Clock::time_point now);
  /// @return whether it had joined
  bool leave(int agent);

  /// A node will never come: the job is complete without it, if the minimum can still be reached.
  /// @return whether it can
  bool give_up_one();

  /// The nodes of the next attempt, if it can begin now. The first one begins by torchrun's last-call rule (B27): all
  /// places are taken, or the minimum is there and the last call is over. A later one needs only the minimum.
  std::optional<Roster> next(Deadline::Clock::time_point now);
  /// Fewer than min_nodes have joined in time.
  bool failed(Deadline::Clock::time_point now) const;
  /// When to call next() and failed() again even if no agent joins; nothing when only the number of members counts.
  std::optional<Deadline> next_deadline() const;

  bool has_joined(int agent) const;
  /// The number of the agent that said @p order; nothing: none of the members.
  std::optional<int> agent_of(std::int64_t order) const;
  int num_members() const { return static_cast<int>(members_.size()); }
  const MembershipRules& rules() const { return rules_; }
  /// "2 of 4 nodes have joined: n0, n3".
  std::string describe() const;

 private:
  bool enough() const { return num_members() >= rules_.min_nodes; }
  /// Nodes that said their order (SLURM_PROCID, --node-rank) come first, in that order; then by host name, with numbers
  /// compared as numbers (node2 before node10); then in the order in which they joined.
  std::vector<Member> in_order() const;

  MembershipRules rules_;
  std::vector<Member> members_;
  Deadline join_deadline_;
  std::optional<Deadline> last_call_;
  int generation_ = 0;  ///< of the next roster
  int next_id_ = 0;
};

}  // namespace ddp::launcher
