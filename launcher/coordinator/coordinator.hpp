// Leads a job: takes agents in, starts attempts on all of them at the same time, supervises the ranks of all nodes, and
// decides about restarts and the end. There is one for the whole job, in the process that all agents can reach.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"
#include "coordinator/agent_links.hpp"
#include "coordinator/membership.hpp"
#include "coordinator/modex_router.hpp"
#include "coordinator/supervisor.hpp"
#include "events/event_loop.hpp"
#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

struct CoordinatorOptions {
  MembershipRules membership;
  int max_restarts = 0;
  std::optional<std::chrono::milliseconds> failure_grace;  ///< see LaunchOptions
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::optional<std::chrono::milliseconds> timeout;  ///< of the whole job
  std::vector<int> ending_signals;
  std::vector<int> forwarded_signals;
  bool torchrun_exit_codes = false;
  bool terminal_out = false;  ///< what agents print on standard output comes to a terminal
  bool terminal_err = false;  ///< the same for standard error
};

/// What is worth telling a user while the job runs.
struct CoordinatorEvents {
  std::function<void(const std::string&)> detail;  ///< for -v
  std::function<void(const std::string&)> note;    ///< always to be said
  std::function<void(int joined, int wanted)> joined;
  std::function<void(int started, int world_size, int num_nodes)> started;
  std::function<void(const JobOutcome&, int attempt, int restarts_left)> restarting;
};

/// Runs in an event loop that somebody else drives: after each turn of it, call time_passed(). Not thread-safe.
class Coordinator {
 public:
  /// @p loop must outlive the object.
  Coordinator(CoordinatorOptions options, EventLoop& loop, CoordinatorEvents events);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// An agent that has proven the job's secret, or is in this process.
  void add(control::Connection connection) { links_.add(std::move(connection)); }
  /// Agents come in through it until the job has its nodes.
  void listen(std::unique_ptr<control::Listener> listener) { links_.listen(std::move(listener)); }

  /// A signal to this process where it has no agent.
  void signal_received(int signal, bool by_slurm);
  /// The agents cannot come any more (srun has ended): the job fails with @p why.
  void agents_lost(const std::string& why, int exit_status);

  std::optional<Deadline> next_deadline() const;
  void time_passed();

  /// All agents have been told the end and are gone, or did not go in time.
  bool finished() const { return phase_ == Phase::finished; }
  /// Of the last attempt.
  const JobOutcome& outcome() const { return outcome_; }
  /// The outcome's, or 1 instead of any failure's where torchrun's codes are wanted.
  int exit_status() const;
  /// How long the end may wait for slow readers. Signals may shorten it, also after finished().
  std::chrono::milliseconds drain_time() const;
  int attempt() const { return attempt_; }
  int world_size() const { return world_size_; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }

 private:
  enum class Phase { gathering, preparing, running, cleaning, finishing, finished };

  /// An agent's part in the current attempt.
  struct Node {
    int link;
    control::NodeLayout layout;
    int first_rank = 0;
    std::int64_t pid = 0;  ///< of the agent
    bool lost = false;
    bool prepared = false;
    bool started = false;
    bool failed = false;    ///< it has no ranks any more, though it may still be there
    bool hopeless = false;  ///< it could not start once, and will not the next time
    bool cleaned = false;
  };

  void handle(int link, const control::Message& message);
  void handle_hello(int link, const control::Hello& hello);
  void handle_prepared(Node& node, const control::AttemptPrepared& message);
  void handle_started(Node& node, const control::RanksStarted& message);
  void handle_rank_ended(const Node& node, const control::RankEnded& message);
  void handle_modex(const Node& node, const control::Message& message);
  void lost(int link, const std::string& peer, const std::string& why);
  void fail_node(Node& node, const std::string& message, int exit_status);
  void send_to_nodes(const control::Message& message);
  void refuse(int link, const std::string& why);

  void begin_attempt();
  void start_ranks();
  /// @param by_slurm Slurm may have sent these signals to ranks already
  void follow(const SignalOrders& orders, bool by_slurm = false);
  void end_attempt();
  void send_end();
  void shorten_drain(std::chrono::milliseconds limit);
  void conclude();
  void finish();
  void give_up_waiting(Deadline::Clock::time_point now);
  Node* node_of(int link);
  int node_rank(const Node& node) const { return static_cast<int>(&node - nodes_.data()); }

  CoordinatorOptions options_;
  CoordinatorEvents events_;
  AgentLinks links_;
  std::map<std::pair<int, int>, int> relayed_signals_;  ///< by link and signal
  std::map<int, int> relayed_most_;                     ///< by signal: of any link
  Membership membership_;
  Phase phase_ = Phase::gathering;
  std::optional<Deadline> phase_end_;
  std::optional<Deadline> job_end_;
  std::chrono::milliseconds drain_time_ = control::kDrainTime;  ///< before the outcome shortens it

  int attempt_ = -1;
  int world_size_ = 0;
  std::string log_suffix_;
  std::vector<Node> nodes_;
  int store_port_ = 0;
  std::unique_ptr<Supervisor> supervisor_;
  std::optional<ModexRouter> modex_;
  JobOutcome outcome_;
};

}  // namespace ddp::launcher
