// Which nodes take part in a job, in which order, and what follows when nodes come or are lost, or all ranks have
// ended: events and time come in, decisions come out. It only decides, so that it can be tested without processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "options/launch_options.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

struct MembershipRules {
  int min_nodes = 1;
  int max_nodes = 1;
  int spares = 0;  ///< members besides these, for which the first roster waits as for the others
  int absent = 0;  ///< of all these, so many are started by others, if at all: the first roster does without
  std::string run_id;
  std::string version;                  ///< of libddp: the same on all nodes
  std::string allocation{};             ///< Slurm's job whose nodes the job begins with; empty: others cannot join
  std::vector<std::string> settings{};  ///< "--on-resize=stop": must be the same where another node says it
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{30'000};  ///< for more nodes, once min_nodes have joined, before the job starts
  bool replaceable = false;                     ///< agents are started one by one: others may come at any time
  bool joinable = false;                        ///< agents of other allocations may come, but are not waited for
  bool expands = false;                         ///< the caller requests the nodes that missing() counts
  int grow_to = 0;                              ///< of these: so many are to take part, though fewer begin
  int max_restarts = 0;
  CrashLoopLimit crash_loop{};
  std::chrono::milliseconds scale_up_delay{2'000};   ///< for more nodes after one has joined a running job
  std::chrono::milliseconds scale_up_limit{10'000};  ///< the same in all, after the first
  std::chrono::milliseconds warm_limit{120'000};     ///< for a node that joins to make its interpreters ready

  /// The job can go on with fewer, more or other nodes.
  bool elastic() const { return min_nodes < max_nodes || spares > 0 || expands; }
  int most_members() const { return max_nodes + (open() ? std::max(spares, max_nodes) : spares); }
  /// "2:4", as --nnodes has it.
  std::string range() const;
  /// Nodes may join while it runs.
  bool open() const { return elastic() && (replaceable || joinable); }
};

struct Member {
  int agent;  ///< the number that join() was given
  control::Hello hello;
  int id = 0;  ///< the same in all rosters of the job, and never another's: ranks change with the roster
  Deadline::Clock::time_point rests_until{};  ///< its host was lost again and again: it takes part only then
  Deadline::Clock::time_point warm_by{};      ///< it makes interpreters ready: no ranks end for it before
};

/// The nodes of one generation, by node rank.
struct Roster {
  int generation;  ///< counts the rosters of a job, from 0
  std::vector<Member> nodes;
};

/// Why all ranks of a generation have ended, where another may follow.
enum class GenerationEnd {
  rank_failed,  ///< spends a restart
  node_failed,  ///< its agent was lost, or its ranks were lost by no fault of theirs: spends one only in a static job
  resized,      ///< Announce
  requested,    ///< by its ranks, without an Announce
};

// Decisions.

/// The next generation begins.
struct Start {
  Roster roster;
  RosterChange change;
  std::vector<int> parked{};  ///< agents of RosterChange::parked
};
/// The ranks of this generation are to end, as other nodes are to take part. It comes again when a node is to leave
/// after others were to join.
struct Announce {
  std::vector<std::string> joining{};  ///< hosts
  std::vector<std::string> leaving{};
  std::vector<std::string> parking{};  ///< they are to wait as spares
};
/// None is to take part any more for whom the ranks were to end.
struct Withdraw {};
/// The agent takes no part any more.
struct Release {
  int agent;
  std::string allocation{};  ///< whose node is free now by a user's wish; else empty
  std::string slurm_node{};  ///< the node
};
/// Nothing is to be done but to call decide() again after an event, and at `until`.
struct WaitUntil {
  std::optional<Deadline> until;
};
/// No generation follows.
struct End {
  enum class Why {
    not_enough_came,  ///< before the job's start, within join_timeout
    nothing_follows,  ///< no restart is left, or the job is static and has lost a node
    too_few_left,     ///< and no other can come
    no_other_came,    ///< likewise, within join_timeout
    crash_loop,
  };
  Why why;
};
using Decision = std::variant<WaitUntil, Start, Announce, Withdraw, Release, End>;

/// A user's, for another number of nodes.
struct ResizeWish {
  int nodes = 0;    ///< so many are to take part, from the rules' least to their most; 0: as before
  int spares = -1;  ///< and so many to wait besides, from now on: more leave; -1: as before
  std::string by;   ///< see RosterChange
  int stays = -1;   ///< an agent that cannot leave
};
struct ResizeAnswer {
  bool taken = false;
  std::string text{};  ///< what follows, or why nothing does
};

/// A roster is a list of slots. Who survives keeps its place among the others; a newcomer takes the lowest free slot,
/// so the one that comes for a lost node takes its place; slots that stay free are taken out. Agents are named by
/// numbers that the caller chooses, and never uses again. Whom a roster has no slot for is a spare, which waits for
/// one.
class MembershipPlan {
 public:
  using Time = Deadline::Clock::time_point;

  MembershipPlan(MembershipRules rules, Time now);

  // ---- events

  /// @return why this agent cannot take part, with both sides' values where they disagree; empty: it has joined
  std::string join(int agent, const control::Hello& hello, Time now);
  /// @return whether it had joined
  bool lost(int agent);
  /// For how long the host of a member that has just joined must wait for its place, because it was lost again and
  /// again: 10 s after the second loss of these 10 minutes, twice as long after each further one, 10 minutes at most.
  std::chrono::milliseconds rest_of(int agent, Time now) const;
  /// A member that makes interpreters ready (control::Hello::warms) has done so.
  /// @return whether that was awaited
  bool warmed(int agent, Time now);
  /// A member is to take part in no further generation, where may_leave() says so. Release follows.
  /// @param asked_by see RosterChange
  void leave(int agent, const std::string& asked_by = {});
  /// From a generation on that follows at once. The nodes of the last slots then wait as spares, before all others;
  /// where those are too many, the last of them leave.
  ResizeAnswer resize(const ResizeWish& wish, Time now);
  /// Whether a request for missing() nodes may bring any; it may again once another request is made.
  void expect_more(bool may_come) { more_may_come_ = may_come; }
  /// A rank has ended well, so the job is about to end: whoever comes now waits for a further generation, if there is
  /// one.
  void rank_succeeded() { admits_ = false; }
  /// Before the start: a node will never come, so the job is complete without it, if the minimum can still be reached.
  /// @return whether it can
  bool will_not_come();
  /// All ranks of the generation have ended, and nodes that are lost are known.
  void ended(GenerationEnd end, Time now);

  // ---- decisions

  /// What is to be done now: call it again until it says WaitUntil or End. The first roster begins by torchrun's
  /// last-call rule (B27): all places are taken, or the minimum is there and the last call is over. A later one needs
  /// only the minimum, and follows at once.
  Decision decide(Time now);
  /// Whether these members may leave together, because enough others are left or may come.
  bool may_leave(const std::vector<int>& agents) const;
  bool may_leave(int agent) const { return may_leave(std::vector{agent}); }
  /// Whether a generation may follow one that ends so, if there are enough nodes.
  bool may_follow(GenerationEnd end, Time now) const;

  // ---- facts

  bool has_joined(int agent) const { return agents_.contains(agent); }
  /// Agents of a Slurm job's nodes.
  std::vector<int> agents_of(const std::string& allocation) const;
  /// Whether that member came from another allocation than the job's own.
  bool is_guest(int agent) const;
  /// Why no further node can join; empty: one can.
  std::string why_full() const;
  /// The number of the agent that said @p order; nothing: none of the members.
  std::optional<int> agent_of(std::int64_t order) const;
  /// Agents of that host.
  std::vector<int> agents_on(const std::string& host) const;
  int num_members() const;
  /// How many the caller is to request: those that have been lost, or that are there for none of the places that
  /// grow_to or resize() gives the job. A node that leaves by its user's wish is not missing.
  int missing() const;
  /// Agents of members that take no part in the last roster.
  std::vector<int> waiting() const;
  int restarts_used() const { return restarts_used_; }
  /// In a running job: it has joined, but all slots of the next roster are taken.
  bool is_spare(int agent) const;
  const MembershipRules& rules() const { return rules_; }
  /// "2 of 4 nodes have joined: n0, n3".
  std::string describe() const;

 private:
  enum class Phase {
    gathering,  ///< for the first roster
    live,       ///< a generation is under way
    between,    ///< it has ended
  };

  /// What members of a role run.
  struct Program {
    std::string name;
    int members = 0;
  };

  /// The losses of a host that followed each other.
  struct Losses {
    int count = 0;
    Time last{};
  };

  bool enough() const { return num_members() >= rules_.min_nodes; }
  bool spends_restart(GenerationEnd end) const;
  bool is_crash_loop(Time now) const;
  std::string why_not(const control::Hello& hello) const;
  std::string why_other_settings(const control::Hello& hello) const;
  bool contradicts(const control::Hello& hello) const;
  void enter(int agent, const control::Hello& hello);
  void remove(int agent);
  void note_losses(Time now);
  Time rests_until(const std::string& host, Time now) const;
  /// From when on a generation may begin with it, or end for it: one that begins anyway takes it in, warm or not.
  Time ready_at(const Member& member) const {
    return phase_ == Phase::live ? std::max(member.rests_until, member.warm_by) : member.rests_until;
  }
  /// When the first of those that are not ready will be; nothing: all are.
  std::optional<Deadline> next_ready(Time now) const;
  bool any_warming(Time now) const;
  int num_active() const;
  int num_ready(Time now) const;
  void release_leaver(int agent, bool by_wish);
  int most_members() const {
    return most_spares_ ? std::min(target_ + *most_spares_, rules_.most_members()) : rules_.most_members();
  }
  std::vector<std::string> let_surplus_leave(const ResizeWish& wish);
  int room() const { return target_ - num_active() + static_cast<int>(leaving_.size()); }
  std::vector<std::string> to_park() const;
  std::vector<std::string> to_join(Time now) const;
  void park();
  /// The first member for which @p test holds; nullptr: none.
  template <class Test>
  const Member* find(const Test& test) const;
  Decision decide_gathering(Time now);
  Decision decide_live(Time now);
  Decision decide_between(Time now);
  Start start(Time now);

  MembershipRules rules_;
  int target_;                      ///< so many nodes take part at most
  int goal_ = 0;                    ///< so many members are wanted, spares among them
  std::optional<int> most_spares_;  ///< by a user's wish
  bool more_may_come_ = true;
  Phase phase_ = Phase::gathering;
  std::vector<std::optional<Member>> slots_;  ///< of the last roster; those that it has lost are empty
  // Of all members, so that one that joins is not compared with each.
  std::set<int> agents_;
  std::set<std::pair<std::string, std::int64_t>> orders_;  ///< by allocation
  std::map<std::string, Program> programs_;                ///< by role
  std::vector<Member> waiting_;                            ///< for the next one, in the order in which they came
  std::map<int, bool> leaving_;           ///< agents in slots that the next roster does without; by a user's wish
  std::vector<Release> released_;         ///< of which decide() has not said so
  std::vector<std::string> left_;         ///< hosts, since the last roster
  std::vector<std::string> lost_;         ///< likewise
  std::set<int> parked_;                  ///< agents, likewise
  std::string asked_by_;                  ///< for the next roster
  std::map<std::string, Losses> losses_;  ///< by host
  bool announced_ = false;                ///< that this generation ends
  bool leave_announced_ = false;          ///< for a node that leaves
  bool admits_ = true;                    ///< this generation ends for nodes that join
  std::optional<Time> first_join_;        ///< of one that is warm, since the last roster
  Time last_join_{};
  int not_coming_;          ///< nodes that the first roster does without
  Deadline join_deadline_;  ///< gathering and between
  std::optional<Deadline> last_call_;
  std::optional<GenerationEnd> end_;  ///< of the last generation
  bool goes_on_ = true;               ///< what may_follow() said then
  Time began_{};                      ///< the last generation
  int short_lives_ = 0;               ///< generations in a row that lost a node, or were ended by ranks, too early
  int generation_ = 0;                ///< of the next roster
  int next_id_ = 0;
  int restarts_used_ = 0;
};

}  // namespace ddp::launcher
