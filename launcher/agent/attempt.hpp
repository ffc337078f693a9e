// One attempt on one node, in its own process: PMIx server, store server, log pump and workers. A new process per
// attempt keeps libpmix's leftovers of an earlier one away, and as the workers' parent it takes them with it when it
// dies.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/arrival_desk.hpp"
#include "agent/change_folder.hpp"
#include "agent/job_layout.hpp"
#include "agent/rank_start.hpp"
#include "agent/standby.hpp"
#include "agent/step_signals.hpp"
#include "agent/trace_gatherer.hpp"
#include "control/connection.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/standstill_watch.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"
#include "events/heartbeat.hpp"
#include "events/signal_inbox.hpp"
#include "logs/log_plan.hpp"
#include "logs/log_pump.hpp"
#include "outcome/oom_watch.hpp"
#include "pmix_server/job_namespace.hpp"
#include "pmix_server/pmix_server.hpp"
#include "pmix_server/scratch_directory.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness.hpp"
#include "stream/event_loop.hpp"
#include "workers/worker_environment.hpp"
#include "workers/worker_group.hpp"

namespace ddp::launcher {

/// For the process's main thread only: workers die with the thread that started them.
class Attempt {
 public:
  /// @p agent is the connection to the parent process. Both references must outlive the object.
  /// @param job_console for the ranks' output: through the agent to the coordinator; nullptr: to this process's streams
  /// @param standby what this process has done before it got the plan, which is taken; nullptr: nothing
  Attempt(const NodeJob& job, const control::PrepareAttempt& plan, control::Connection agent,
          std::shared_ptr<control::Connection> job_console, StandbyWork* standby = nullptr);
  ~Attempt();
  Attempt& operator=(Attempt&&) = delete;

  /// Runs until EndAttempt, or until the agent is lost, which kills everything at once.
  void run();

 private:
  /// A rank's standard output and error; empty: this process's own.
  struct Outlets {
    base::UniqueFd out, err;
  };
  /// Another node's request for what a local rank has put.
  struct Question {
    int node;
    std::int64_t id;
  };

  void prepare();
  std::string serve_store(const std::vector<std::string>& addresses);
  void print_refusals();
  void start(const control::StartAttempt& message);
  void spawn_ranks(const RankStore& store);
  void describe_ranks(const RankStore& store);
  void report_conflicts() const;
  void report_local_interface() const;
  void report_shared_cores() const;
  void report_no_warm_workers() const;
  void check_ranks_filter() const;
  RankStart start_of(int local_rank) const {
    return {.job = job_, .plan = plan_, .ranks = ranks_, .place = place_of(local_rank), .local_rank = local_rank};
  }
  EnvironmentMap environment_of(int local_rank, const RankStore& store) const;
  RankStreams streams_of(int local_rank) const;
  std::vector<Outlets> open_outlets();
  StartingWorker start_rank(int local_rank, const EnvironmentMap& environment, const Outlets& outlets);
  void take_in(int local_rank, SpawnedProcess process);
  void handle(const control::Message& message);
  void agent_lost();
  void announce_change(bool pending);
  void send(const control::Message& message);
  void fail(const std::string& message, int exit_status);
  void watch_rank(int local_rank);
  void take_signals();
  void signal_ranks();
  void take_aborts();
  void take_modex();
  void report_end(int local_rank, const RankEnd& end);
  void send_gathered();
  void watch_standstill();
  void send_standstill();
  void observe_ranks(Deadline deadline);
  void send_observed();
  void collect_stacks(const control::CollectStacks& order);
  void begin_stacks(Deadline deadline);
  void send_stacks();
  void suspend_ranks();
  void resume_ranks();
  void beat();
  std::string silence_of_pmix(std::chrono::milliseconds least) const;
  void watch_pmix();
  void shorten_drain(std::chrono::milliseconds limit);
  void read_drain_time();
  void clean();
  void finish_logs();
  const topology::RankPlan& place_of(int local_rank) const { return places_[static_cast<std::size_t>(local_rank)]; }
  int global_rank(int local_rank) const { return ranks_.first_rank + local_rank; }
  void tell(const std::string& text) const;

  const NodeJob& job_;
  const control::PrepareAttempt& plan_;
  std::shared_ptr<control::Connection> job_console_;
  NodeRanks ranks_;
  stream::EventLoop loop_;
  LoopConnection agent_;
  SignalInbox signals_;  ///< SIGCHLD, and those that the agent gets
  StepSignals step_signals_;
  OomWatch oom_;
  base::UniqueFd scratch_use_;
  std::optional<ChangeFolder> change_;  ///< where nodes may join and leave
  std::unique_ptr<store_server::StoreServer> store_;
  std::vector<std::string> store_refusals_;         ///< as in JobOutcome
  std::unique_ptr<store_server::Witness> witness_;  ///< for another node's store
  std::unique_ptr<PmixServer> pmix_;
  std::unique_ptr<JobNamespace> name_space_;
  std::shared_ptr<LogPump> logs_;  ///< shared with traces_, whose thread may hang
  std::unique_ptr<TraceGatherer> traces_;
  std::unique_ptr<diagnostics::StandstillWatch> standstill_;
  std::unique_ptr<diagnostics::RankObserver> observer_;  ///< while it looks
  std::optional<Deadline> stacks_due_;                   ///< they are to be read once the observer has looked
  std::unique_ptr<diagnostics::StackGatherer> stacks_;   ///< while they are read
  std::string log_folder_;                               ///< of this attempt; empty: no files
  std::vector<std::string> rank_folders_;                ///< of --log-layout rank, by local rank; else of empty names
  std::vector<topology::RankPlan> places_;               ///< by local rank
  std::string ddp_info_;                                 ///< where ranks dump their environments
  EnvironmentMap inheritable_;
  std::unique_ptr<WorkerGroup> workers_;
  std::unique_ptr<WarmWorkers> warm_;                                  ///< until the ranks are started
  std::vector<control::Message> early_;                                ///< orders that came before run()
  std::map<std::vector<int>, std::deque<std::uint64_t>> open_fences_;  ///< the library's calls, by ranks, oldest first
  std::map<std::uint64_t, Question> questions_;
  ArrivalDesk arrivals_;
  std::uint64_t next_ticket_ = 1;
  std::vector<int> ordered_;  ///< signals to all ranks, for ranks still to start
  bool failed_ = false;       ///< no ranks: fail() has been called
  bool unclean_ = false;
  bool over_ = false;
  bool suspended_ = false;                                      ///< by Ctrl-Z
  bool pmix_reported_ = false;                                  ///< that the PMIx server does not answer
  std::chrono::milliseconds drain_time_ = control::kDrainTime;  ///< for slow consoles
  Heartbeat heartbeat_;
};

}  // namespace ddp::launcher
