// One attempt of a job as the coordinator sees it: its nodes, how far each has come, and what supervises their ranks.
// It goes with the attempt, so that nothing of it reaches the next one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "coordinator/membership_plan.hpp"
#include "coordinator/modex_router.hpp"
#include "coordinator/supervisor.hpp"

namespace ddp::launcher {

/// In the order in which a node passes through them; it may skip some.
enum class NodeState {
  preparing,  ///< it has been told to prepare
  prepared,   ///< its attempt process is ready for ranks, or starts them
  started,    ///< all of its ranks have been started
  failed,     ///< it has no ranks any more, though its agent may answer
  cleaned,    ///< no process of the attempt is left
  lost        ///< its agent is gone
};

enum class AttemptPhase {
  preparing,  ///< all nodes are
  running,    ///< ranks are, on some node
  cleaning    ///< all ranks have ended, or were given up
};

/// An agent's part in an attempt.
struct AttemptNode {
  int link;
  int member;  ///< Member::id
  int rank;
  int first_rank;
  std::int64_t pid;  ///< of the agent
  control::NodeLayout layout;
  NodeState state = NodeState::preparing;
  bool newcomer = false;       ///< to a job that has run without it
  bool unfit = false;          ///< the others go on without it: it cannot start its ranks, now or later
  bool silent_before = false;  ///< as in NodeFailure
  std::string description{};   ///< of RanksStarted

  bool may_have_ranks() const { return state < NodeState::failed; }
  bool settled() const { return state >= NodeState::cleaned; }
};

class JobAttempt {
 public:
  /// Chooses the network interfaces of all nodes. Throws Error as choose_interfaces().
  explicit JobAttempt(const Roster& roster);

  /// In each of its messages, so that those of another attempt are known.
  int epoch() const { return epoch_; }
  AttemptPhase phase() const { return phase_; }
  void set_phase(AttemptPhase phase) { phase_ = phase; }
  int world_size() const { return world_size_; }
  std::vector<AttemptNode>& nodes() { return nodes_; }
  const std::vector<AttemptNode>& nodes() const { return nodes_; }
  std::vector<control::NodeLayout> layout() const;
  /// nullptr: the link takes no part, or its agent is lost.
  AttemptNode* node_of(int link);
  /// @param rank of this attempt.
  const AttemptNode& node_with(int rank) const;

  void prepared(AttemptNode& node, const control::AttemptPrepared& message);
  /// Whether all nodes are, so that start() may be called.
  bool all_prepared() const;
  /// From now on there is a supervisor. @return what all nodes must be told
  control::StartAttempt start(SupervisionLimits limits, SignalMeaning signals);
  void started(AttemptNode& node, const std::vector<std::int64_t>& pids);
  /// Those that have come, up to the first node whose has not, each once; without empty ones.
  std::vector<std::string> take_descriptions();
  /// Ranks of the nodes that have started theirs.
  int ranks_started() const { return ranks_started_; }
  /// No process of the attempt is left on any node that answers.
  bool settled() const;

  /// Only after start().
  Supervisor& supervisor() { return *supervisor_; }
  const Supervisor& supervisor() const { return *supervisor_; }
  ModexRouter& modex() { return modex_; }
  const ModexRouter& modex() const { return modex_; }

 private:
  int epoch_;
  AttemptPhase phase_ = AttemptPhase::preparing;
  int world_size_ = 0;
  int ranks_started_ = 0;
  std::size_t descriptions_taken_ = 0;
  // Nodes before these are, and stay so: each is looked at once, not at every message of every other.
  mutable std::size_t prepared_ = 0, settled_ = 0;
  int store_port_ = 0;
  std::string store_key_;
  std::vector<AttemptNode> nodes_;  ///< by node rank
  std::unordered_map<int, std::size_t> node_of_link_;
  ModexRouter modex_;
  std::optional<Supervisor> supervisor_;
};

}  // namespace ddp::launcher
