// ddp-step coordinator: beside srun, the coordinator of a step of `srun --ddp`. Where ddprun's coordinator starts and
// ends ranks, this one hears of the tasks that Slurm starts and ends, from the nodes' agents (step_agent.hpp). Verdict,
// report, event log, liveness and the agreement on a network are ddprun's.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "coordinator/agent_links.hpp"
#include "coordinator/supervisor.hpp"
#include "diagnostics/hang/hang_inquiry.hpp"
#include "diagnostics/metrics/metrics_page.hpp"
#include "report/event_log.hpp"
#include "step_program/last_words.hpp"
#include "store_server/store_server.hpp"
#include "stream/event_loop.hpp"
#include "stream/listening.hpp"
#include "stream/secret.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::srun_plugin {

struct StepCoordinatorOptions {
  std::optional<stream::PortRange> ports{};
  bool failure_ends_step = false;  ///< as srun decides it
  bool nodes_expected = false;     ///< the step exists already, so that nodes should be heard of before its end
  std::chrono::milliseconds patience{10'000};                    ///< with nodes that begin later than others
  std::optional<std::chrono::milliseconds> hang_report_after{};  ///< nothing: never told
  std::string event_log{};                                       ///< file; empty: none
  std::chrono::milliseconds event_log_interval{60'000};
  std::string program{};
  std::string job{};   ///< "17"; empty: not known
  std::string step{};  ///< "17.0"; empty: not known
};

/// Runs in the caller's event loop: after each turn of it, call time_passed(). What users should know goes to standard
/// error. Not thread-safe.
class StepCoordinator {
 public:
  /// Listens. @p loop must outlive the object. Throws Error(system).
  StepCoordinator(StepCoordinatorOptions options, const stream::Secret& secret, stream::EventLoop& loop);

  std::uint16_t port() const { return port_; }
  std::optional<Deadline> next_deadline() const;
  void time_passed();

  /// The step has ended: says what there is to say of that.
  void end();
  /// srun's exit status, as a shell would give the end of the rank that is to blame; 0: none has failed. After end().
  int failure_status() const;

 private:
  struct Node {
    std::string host{};
    int number;  ///< of the order in which nodes came
    bool refuses = false;
    bool gone = false;
    std::vector<std::string> addresses{};
    std::vector<launcher::control::Interface> interfaces{};
    std::vector<int> ranks{};  ///< by local rank
    bool started = false;
    std::size_t ended = 0;
  };

  void handle(int link, const launcher::control::Message& message);
  void handle_tasks(int link, Node& node, const launcher::control::StepTasks& tasks);
  void handle_started(Node& node, const launcher::control::RanksStarted& message);
  void handle_ended(int link, Node& node, const launcher::control::RankEnded& message);
  void handle_observed(const Node& node, const launcher::control::RanksObserved& message);
  void lost(int link, const launcher::AgentLinks::Loss& loss);
  std::vector<std::string> missing_nodes() const;
  bool any_refuses() const;
  void decide();
  void choose_network();
  void tell_plan(int link, const Node& node);
  void serve_store();
  void start(launcher::control::StartAttempt start);
  void end_step();
  void look_for_hang();
  void say_failure();
  void report();

  StepCoordinatorOptions options_;
  launcher::AgentLinks links_;
  std::uint16_t port_ = 0;
  Deadline launched_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::map<int, Node> nodes_;          ///< by link
  std::vector<std::string> expected_;  ///< nodes, each once
  int world_size_ = 0;
  std::optional<launcher::Supervisor> supervisor_;  ///< from the first node on
  std::optional<Deadline> patience_end_;
  bool decided_ = false;
  std::string undecided_because_;
  std::map<std::string, topology::SocketInterface> interfaces_;  ///< by host
  std::optional<int> store_link_;                                ///< of the node that serves the ranks' store
  std::optional<Deadline> store_due_;
  std::unique_ptr<store_server::StoreServer> server_;  ///< else the ranks' store, here
  stream::EventLoop& loop_;
  std::optional<launcher::control::StartAttempt> start_;
  bool step_ends_ = false;  ///< before its programs have started
  diagnostics::HangInquiry hang_;
  diagnostics::JobProgress progress_;
  std::optional<launcher::EventLog> log_;
  LastWords output_;  ///< srun's
  std::optional<Deadline> failure_due_;
  bool failure_said_ = false;
  std::vector<std::string> silent_;
  launcher::JobOutcome outcome_;  ///< after end()
};

/// Reads the step's secret (stream::Secret), one line, from standard input, writes "ddp-step 1 port NUMBER" or
/// "error TEXT" to standard output, and coordinates until standard input ends, as it does when srun ends in any way. At
/// the end it writes "failure STATUS" to standard output where a rank has failed. Returns the exit status.
int coordinate_step(const StepCoordinatorOptions& options);

}  // namespace ddp::srun_plugin
