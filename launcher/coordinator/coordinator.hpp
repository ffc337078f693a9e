// Leads a job: gathers agents, starts attempts on all of them at once, supervises the ranks of all nodes, and decides
// on restarts and the end. One per job, in the process that all agents can reach.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "coordinator/agent_links.hpp"
#include "coordinator/end_notice.hpp"
#include "coordinator/job_attempt.hpp"
#include "coordinator/membership_plan.hpp"
#include "coordinator/supervisor.hpp"
#include "diagnostics/hang/hang_inquiry.hpp"
#include "events/heartbeat.hpp"
#include "outcome/job_outcome.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

struct CoordinatorOptions {
  MembershipRules membership;
  std::optional<std::chrono::milliseconds> failure_grace;  ///< see LaunchOptions
  std::chrono::milliseconds shutdown_timeout{30'000};
  ResizeManner resize{};
  std::optional<std::chrono::milliseconds> timeout;            ///< of the whole job
  std::chrono::milliseconds stack_limit{0};                    ///< for reading all ranks' stacks; 0: they are not read
  std::optional<std::chrono::milliseconds> hang_report_after;  ///< see LaunchOptions
  std::optional<std::chrono::milliseconds> end_hung;           ///< likewise
  std::vector<int> ending_signals;
  std::vector<int> forwarded_signals;
  bool torchrun_exit_codes = false;
  bool terminal_out = false;  ///< agents' standard output ends up on a terminal
  bool terminal_err = false;  ///< the same for standard error
  bool job_console = false;   ///< of several nodes: what their ranks write comes here, see CoordinatorEvents::output
  PeerLimits peers{};
  std::chrono::milliseconds progress_interval{0};  ///< between two calls of CoordinatorEvents::progress; 0: none
  std::string log_name = "none";                   ///< of the folders of log files
  bool input = false;                              ///< rank 0's standard input comes by send_input()
};

/// What a user may see while the job runs.
struct CoordinatorEvents {
  std::function<void(const std::string&)> detail;  ///< for -v
  std::function<void(const std::string&)> note;    ///< always shown
  std::function<void(int joined, int wanted)> joined;
  std::function<void()> before_attempt{};
  std::function<void(int started, int world_size, int num_nodes)> started;
  std::function<void(const std::string&)> described{};  ///< --dry-run: a node's ranks, in the order of the nodes
  std::function<void(int link, const control::ConsoleOutput&)> output{};  ///< answered by output_taken()
  std::function<void(int node, std::size_t nodes, const control::Progress&)> progress{};
  std::function<void(const JobOutcome&, int attempt, int restart)> restarting;  ///< restart: from 1
  /// No restart is spent, and the nodes are others. @param generation the new one
  std::function<void(const JobOutcome&, int generation, const RosterChange&)> going_on = {};
  std::function<void(int rank, const std::string& host, const RankEnd&)> rank_ended{};
  std::function<void(const NodeFailure&)> node_lost{};        ///< or it cannot start its ranks
  std::function<void(std::int64_t order)> agent_joined = {};  ///< with its control::Hello::order
  std::function<void(bool anew)> input_wanted = {};           ///< by rank 0; anew: on another node than before
  std::function<void(std::int64_t bytes)> input_taken = {};   ///< so much more of it
  /// By a user's wish, it has left for good. @param allocation Slurm's job, to which it belongs @param node its name
  std::function<void(const std::string& allocation, const std::string& node)> node_freed = {};
  std::function<std::string()> waiting_hint = {};  ///< what to look at while nodes do not come; may be empty
};

/// Runs in the caller's event loop: after each turn of it, call time_passed(). Not thread-safe.
class Coordinator {
 public:
  using Clock = std::function<Moment()>;

  /// @p loop must outlive the object. @p clock: for tests.
  Coordinator(CoordinatorOptions options, stream::EventLoop& loop, CoordinatorEvents events, Clock clock = Moment::now);
  Coordinator& operator=(Coordinator&&) = delete;

  /// An agent that has proven the job's secret.
  void add(control::Connection connection) { links_.add(std::move(connection)); }
  /// The agent of this process, which does not leave the job before its end.
  void add_own(control::Connection connection) { own_link_ = links_.add(std::move(connection)); }
  /// Where agents connect until the job has its nodes.
  void listen(std::unique_ptr<control::Listener> listener);

  /// A signal to this process where it has no agent.
  void signal_received(int signal, bool by_slurm);
  /// Stops the ranks of all nodes, because this process will stop itself (Ctrl-Z); its agents wait for it meanwhile.
  void suspend();
  void resume();
  /// No agent can connect any more (srun has ended): the job fails with @p why.
  /// @param hint what to do, where not all have joined; may be empty
  void agents_lost(const std::string& why, int exit_status, const std::string& hint = {});
  /// @p count agents will not connect. @return whether the job goes on without them
  bool agents_missing(std::size_t count, const std::string& why);
  /// What held the agent of that order on its host has ended; its connection may not tell.
  void agent_left(std::int64_t order, const std::string& why);

  /// The console has taken what came from @p link.
  void output_taken(int link, const control::ConsoleTaken& taken) { links_.send(link, taken); }

  /// For rank 0; see CoordinatorEvents::input_wanted.
  void send_input(const control::Input& piece) {
    if (input_link_) links_.send(*input_link_, piece);
  }

  std::optional<Deadline> next_deadline() const;
  void time_passed();

  /// All agents have been told to end and are gone, or did not go in time.
  bool finished() const { return phase_ == Phase::finished; }
  /// Of the last attempt.
  const JobOutcome& outcome() const { return outcome_; }
  /// The outcome's, or 1 for any failure where torchrun's codes are wanted.
  int exit_status() const;
  /// A signal, --timeout or a failure is ending the job: by then it must be over, whatever a node does. Nothing before.
  std::optional<Deadline> end_by() const { return state_.end_by; }
  /// How long the end may wait for slow readers. Signals may shorten it, also after finished().
  std::chrono::milliseconds drain_time() const;
  /// How long the end may wait for a slow reader of the ranks' output, since @p begin, which last took some at
  /// @p moved. Signals may shorten it.
  Deadline reader_limit(Heartbeat::Time begin, Heartbeat::Time moved) const;
  /// nullptr: none has begun.
  const JobAttempt* last_attempt() const { return attempt_ ? &*attempt_ : nullptr; }
  int restarts_used() const { return membership_.restarts_used(); }

  /// See MembershipPlan; none when the job ends.
  int missing_nodes() const { return phase_ < Phase::finishing ? membership_.missing() : 0; }
  int nodes_of(const std::string& allocation) const {
    return static_cast<int>(membership_.agents_of(allocation).size());
  }
  void expect_more_nodes(bool may_come) { membership_.expect_more(may_come); }

 private:
  /// Of the job, of which each attempt has its own (AttemptPhase).
  enum class Phase {
    gathering,
    attempting,
    waiting,  ///< for nodes, after an attempt that has lost some
    finishing,
    finished
  };

  /// Begins anew with each attempt.
  struct AttemptState {
    std::optional<Deadline> end_by;           ///< see end_by()
    std::optional<Deadline> give_up_at;       ///< cleaning: when to look for nodes that do not answer
    Heartbeat::Time asked_at{};               ///< when all nodes got the last order that they must obey at once
    std::vector<std::string> silent;          ///< JobOutcome::silent
    std::vector<std::string> store_refusals;  ///< likewise
    std::chrono::milliseconds drain_time = control::kDrainTime;  ///< before the outcome shortens it
    EndNotice notice;
    std::map<int, Heartbeat::Time> accused;  ///< nodes that errors of other nodes' ranks name, and when first
    bool stacks_asked = false;               ///< and not all that can come is there
    std::set<int> stacks_due;                ///< nodes that have not sent theirs, by node rank
    RankStacks stacks;
    diagnostics::HangInquiry hang{};
    bool hang_ended = false;  ///< the job has begun to end
    bool change_pending = false;
    bool change_announced = false;                              ///< by an Announce, though it may have been withdrawn
    bool slurm_ends_leavers = false;                            ///< a node that is to leave has little time
    std::vector<std::pair<int, control::RankEnded>> held_ends;  ///< by rank; see slurm_may_end()
    std::optional<Deadline> held_until;
    control::NodesChange told{};            ///< to all nodes
    std::optional<HangReport> hang_report;  ///< for the outcome
  };

  void handle(int link, const control::Message& message);
  void handle_hello(int link, const control::Hello& hello);
  void handle_allocation(int link, const control::AllocationHello& hello);
  void handle_resize(int link, const control::ResizeAsked& wanted);
  ResizeAnswer drain(const std::string& host, const std::string& by);
  void handle_signal(int link, const control::SignalReceived& message);
  bool leaves(int link, const control::SignalReceived& message);
  void let_leave(int link, const control::SignalReceived& message);
  void handle_resting(int link, const control::Resting& message);
  void stop_ranks(bool stop);
  void handle_prepared(AttemptNode& node, const control::AttemptPrepared& message);
  void handle_started(AttemptNode& node, const control::RanksStarted& message);
  void handle_failed(AttemptNode& node, const control::AttemptFailed& message);
  void handle_rank(int rank, const control::RankEnded& message);
  bool slurm_may_end(int rank, const RankEnd& end) const;
  void take_held_ends();
  void rank_ended(int rank, const control::RankEnded& message);
  void handle_rank(int rank, const control::RankAborted& message);
  void handle_rank(int rank, const control::RankStopped& message);
  void note_accusation(const AttemptNode& accuser, const RankTraces& traces);
  void lose_accused();
  void handle_modex(const AttemptNode& node, const control::Message& message);
  void send_modex(const ModexRouter::Outgoing& outgoing);
  void handle_stacks(const AttemptNode& node, const control::StacksCollected& message);
  void handle_still(const AttemptNode& node, const control::RanksStill& message);
  void handle_observed(const AttemptNode& node, const control::RanksObserved& message);
  std::set<int> nodes_with_ranks() const;
  void look_for_hang();
  void end_hung();
  void note_end_of_hang();
  void lost(int link, const AgentLinks::Loss& loss);
  void fail_gathering(const std::string& message, int exit_status);
  void fail_node(AttemptNode& node, const std::string& message, int exit_status);
  void send_to_nodes(const control::Message& message);
  void refuse(int link, const std::string& why);

  void begin_attempt(const Roster& roster);
  void start_ranks();
  /// @param by_slurm Slurm may have sent these signals to ranks already
  void follow(const SignalOrders& orders, bool by_slurm = false);
  void kill_some(const std::vector<int>& ranks);
  void announce_end(int signal);
  void ask_for_stacks();
  void settle_stacks();
  void end_attempt();
  void send_end();
  void limit_end(std::chrono::milliseconds limit);
  void limit_cleaning();
  /// Why the attempt has ended, if another may help.
  std::optional<GenerationEnd> end_of_generation() const;
  bool only_newcomers_failed() const;
  bool may_go_on() const;
  bool asks_plan() const { return gathers_or_waits() || in(AttemptPhase::running); }
  void tell_of_change();
  bool gathers_or_waits() const { return phase_ == Phase::gathering || phase_ == Phase::waiting; }
  bool in(AttemptPhase phase) const { return phase_ == Phase::attempting && attempt_->phase() == phase; }
  bool ended_by_user() const { return outcome_.forwarded_signal != 0 || outcome_.timed_out; }
  bool is_reported(const AttemptNode& node) const;
  void name_silent(const AttemptNode& node);
  void give_up_silent_nodes(Heartbeat::Time since);
  void give_up_cleaning();
  void shorten_drain(std::chrono::milliseconds limit);
  void conclude();
  void decide();
  void begin_generation(const Start& start);
  void resize(const Announce& change);
  void release(int link, int exit_status, const std::string& message);
  void release_unfit(const AttemptNode& node);
  void release_spares();
  void note_wait();
  void end_job(End::Why why);
  void finish();
  void give_up_preparing();
  void tell_waiting();
  std::string waiting_hint() const;
  void job_timed_out();
  bool expired(const std::optional<Deadline>& deadline) const;
  Deadline after(std::chrono::milliseconds duration) const { return Deadline{clock_().steady + duration}; }

  CoordinatorOptions options_;
  CoordinatorEvents events_;
  Clock clock_;
  AgentLinks links_;
  std::map<int, std::string> allocations_;            ///< of ddpruns that start agents in another one, by link
  std::map<std::pair<int, int>, int> signal_counts_;  ///< by link and signal
  std::map<int, int> signals_taken_;                  ///< by signal: the highest count of any link
  MembershipPlan membership_;
  Phase phase_ = Phase::gathering;
  std::vector<std::string> listening_at_;
  std::optional<int> own_link_;           ///< of this process's agent
  std::optional<int> input_link_;         ///< of rank 0's node
  std::optional<Deadline> wait_told_at_;  ///< gathering: when to say that nodes are awaited; then nothing
  std::optional<Deadline>
      next_decision_;  ///< when the plan wants to be asked again, as far as its answer can be followed
  bool wait_noted_ = false;
  std::optional<Deadline> phase_end_;
  std::optional<Deadline> job_end_;
  std::string log_suffix_;
  int nodes_lost_ = 0;                 ///< by all attempts before
  bool restart_is_pointless_ = false;  ///< a node could not start its ranks, and will not the next time
  std::optional<JobAttempt> attempt_;  ///< the last one
  AttemptState state_;
  JobOutcome outcome_;
};

}  // namespace ddp::launcher
