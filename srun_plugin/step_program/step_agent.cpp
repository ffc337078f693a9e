#include "step_program/step_agent.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>
#include <ddp/version.hpp>

#include "agent/node_metrics.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "control/connection.hpp"
#include "control/handshake.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/standstill_watch.hpp"
#include "events/heartbeat.hpp"
#include "placement/network_choice.hpp"
#include "srun_side/ddp_step_client.hpp"
#include "step_program/node_planner.hpp"
#include "store_server/peer_address.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness.hpp"
#include "stream/event_loop.hpp"
#include "task_side/node_channels.hpp"

namespace ddp::srun_plugin {
namespace {

namespace control = launcher::control;
using launcher::NodeMetrics;

// The plugin waits a little longer for each.
constexpr std::chrono::seconds kReachLimit{5};
constexpr std::chrono::seconds kStoreReachLimit{5};
// Refused connections before the coordinator counts as absent: it listens before this program starts.
constexpr int kTriesToReach = 3;
// Time for the coordinator's decision, beyond what it grants other nodes.
constexpr std::chrono::seconds kDecisionReserve{4};
constexpr std::chrono::seconds kFindingsReserve{30};
// The plugin writes the question at once, and the resources once the node's other tasks have reported.
constexpr std::chrono::seconds kQuestionLimit{10};
constexpr std::chrono::seconds kResourcesLimit{20};
constexpr std::chrono::seconds kSweepLimit{1};  // the next one removes the rest
constexpr std::chrono::milliseconds kFarewell{200};

/// Otherwise another program of the step would wait for the end of output that only this process holds open, or find
/// its folder in use.
void let_go_of(std::initializer_list<int> descriptors) {
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  for (const int fd : descriptors) {
    if (nothing) ::dup2(nothing.get(), fd);
  }
}

/// Removes scratch of jobs that Slurm killed, in a thread: a slow file system delays neither the node's tasks nor their
/// reports, and one that hangs does not keep alive this process, whose end Slurm waits for.
void start_sweep() {
  const char* const folder = std::getenv("TMPDIR");
  try {
    base::start_thread([parent = std::string{folder != nullptr && *folder != '\0' ? folder : "/tmp"}] {
      for (const std::string& each : {parent, std::string{base::kMemoryFolder}})
        base::remove_left_scratch(each, Deadline::after(kSweepLimit));
    }).detach();
  } catch (const std::exception&) {  // no more threads: the next one removes the rest
  }
}

bool is_this_host(const std::string& address) {
  const auto parsed = store_server::PeerAddress::parse(address);
  return parsed && store_server::OwnAddresses{}.contain(*parsed);
}

launcher::RankEnd end_of(const TaskEnd& end) {
  const bool by_signal = WIFSIGNALED(end.status);
  return {.code = by_signal ? WTERMSIG(end.status) : WEXITSTATUS(end.status),
          .by_signal = by_signal,
          .core_dumped = by_signal && WCOREDUMP(end.status),
          .time = std::chrono::system_clock::time_point{std::chrono::milliseconds{end.when_ms}}};
}

class StepAgent {
 public:
  /// SIGTERM must be blocked. @param planner receives the NodeFindings
  StepAgent(NodeQuestion question, base::UniqueFd planner, base::Environment environment);

  /// Returns when this node has nothing more to report, or no coordinator to report it to.
  void run();

 private:
  control::Connection reach_coordinator() const;
  void join();
  void serve_metrics();
  control::Hello hello(int fd) const;
  void handle(const control::Message& message);
  void prepare(const control::PrepareAttempt& plan);
  void serve_store();
  void use_store(const control::StartAttempt& start);
  void answer();
  void take_news();
  void task_started(const TaskStart& start);
  void task_ended(const TaskEnd& end);
  void watch_standstill();
  void observe(const control::ObserveRanks& order);
  void beat();
  void terminated();
  void send(const control::Message& message) {
    if (metrics_) metrics_->note(message);
    coordinator_->send(message);
  }
  void stay_as_witness();
  std::optional<int> local_rank(std::int64_t rank) const;

  NodeQuestion question_;
  base::UniqueFd planner_;  ///< until answered
  base::Environment environment_;
  OwnNetwork network_;
  NodeFindings findings_;
  std::optional<topology::SocketInterface> agreed_;
  std::chrono::steady_clock::time_point joined_at_{};
  stream::EventLoop loop_;
  base::UniqueFd termination_;
  std::optional<launcher::LoopConnection> coordinator_;
  std::optional<launcher::Heartbeat> heartbeat_;
  std::optional<Deadline> decision_due_;
  std::unique_ptr<NodeMetrics> metrics_;
  std::unique_ptr<store_server::StoreServer> server_;
  std::unique_ptr<store_server::Witness> witness_;  ///< watches the ranks' store
  std::chrono::milliseconds still_after_{0};
  std::map<int, pid_t> running_;  ///< by local rank
  std::vector<std::int64_t> pids_;
  std::size_t started_ = 0;
  std::optional<int> awaited_end_;  ///< slurmstepd waits until the coordinator has recorded it
  std::unique_ptr<diagnostics::StandstillWatch> standstill_;
  std::unique_ptr<diagnostics::RankObserver> observer_;
  bool finished_ = false;
};

StepAgent::StepAgent(NodeQuestion question, base::UniqueFd planner, base::Environment environment)
    : question_(std::move(question)),
      planner_(std::move(planner)),
      environment_(std::move(environment)),
      network_(read_own_network(question_, environment_)),
      pids_(question_.ranks.size(), 0) {
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  termination_.reset(::signalfd(-1, &termination, SFD_CLOEXEC | SFD_NONBLOCK));
}

void StepAgent::run() {
  try {
    join();
  } catch (const std::exception& error) {
    findings_.meeting.flaw = error.what();
    return answer();
  }
  while (!finished_) {
    loop_.run_once(observer_ && decision_due_ ? earlier(observer_->deadline(), *decision_due_)
                   : observer_                ? observer_->deadline()
                   : decision_due_            ? *decision_due_
                                              : Deadline::after(std::chrono::hours(1)));
    if (decision_due_ && decision_due_->expired()) {
      findings_.warning = fmt::format(
          "{} does not agree with the other nodes on a network: ddp-step beside srun does not answer; it uses the "
          "interface that routes to them",
          question_.node_name);
      findings_.meeting.flaw = "ddp-step beside srun does not answer";
      answer();
    }
    if (observer_ && observer_->deadline().expired()) observe({});
  }
  if (coordinator_->open()) coordinator_->close(Deadline::after(kFarewell));
  stay_as_witness();
}

// ---- the coordinator ----------------

control::Connection StepAgent::reach_coordinator() const {
  const auto fail = [](const std::string& cause, ErrorCode code = ErrorCode::unavailable) {
    throw Error{{.code = code,
                 .attempted = "connecting to ddp-step beside srun",
                 .cause = cause,
                 .hint = code == ErrorCode::protocol
                             ? "install one version of libddp on all nodes and on srun's host"
                             : "does a firewall block that way? SrunPortRange in slurm.conf limits the ports"}};
  };
  int tries = 0;
  try {
    return control::connect({question_.srun_address}, question_.port,
                            control::job_secret_provers(stream::Secret::from_hex(question_.secret)),
                            Deadline::after(kReachLimit), kReachLimit, [&](const std::string& cause) {
                              if (++tries == kTriesToReach) fail(cause);
                            });
  } catch (const Error& error) {
    fail(error.cause(), error.code() == ErrorCode::protocol ? ErrorCode::protocol : ErrorCode::unavailable);
    throw;
  }
}

void StepAgent::join() {
  control::Connection connection = reach_coordinator();
  findings_.meeting.reached = true;
  joined_at_ = std::chrono::steady_clock::now();
  coordinator_.emplace(
      loop_, std::move(connection), [this](const control::Message& message) { handle(message); },
      [this](const std::string& why) {
        findings_.meeting.flaw = fmt::format("the connection to ddp-step beside srun was lost: {}", why);
        answer();
        finished_ = true;
      });
  heartbeat_.emplace(loop_, launcher::PeerLimits{}.beat, [this] { beat(); });
  decision_due_ = Deadline::after(std::chrono::seconds{question_.patience_seconds} + kDecisionReserve);
  if (termination_) loop_.watch(termination_.get(), [this] { terminated(); });
  serve_metrics();
  send(hello(coordinator_->fd()));
  std::vector<std::int64_t> ranks(question_.ranks.begin(), question_.ranks.end());
  send(control::StepTasks{.node_list = question_.node_list,
                          .world_size = static_cast<int>(question_.world_size),
                          .ranks = std::move(ranks)});
  if (question_.has_channel) loop_.watch(DdpStepClient::kInheritedFd, [this] { take_news(); });
  if (!findings_.meeting.refusal.empty()) answer();
}

void StepAgent::serve_metrics() {
  if (!question_.has_channel) return;
  try {
    metrics_ = std::make_unique<NodeMetrics>(NodeMetrics::Node{.port = question_.metrics_port,
                                                               .address = question_.metrics_address,
                                                               .host = question_.node_name,
                                                               .program = question_.program},
                                             loop_);
    metrics_->begin({.job_name = question_.step,
                     .numbers = {question_.ranks.begin(), question_.ranks.end()},
                     .world_size = static_cast<int>(question_.world_size),
                     .num_nodes = question_.num_nodes,
                     .interval = std::chrono::seconds{question_.progress_seconds}});
    if (question_.metrics_port == 0)
      base::write_stderr_line(fmt::format("ddp: {}: metrics at {}", question_.node_name, metrics_->url()));
  } catch (const Error& error) {
    // The agent stays, and so reports when the tasks end.
    findings_.meeting.refusal = error.what();
  }
}

/// Announces no tasks if this node may not start any: then no node starts any.
control::Hello StepAgent::hello(int fd) const {
  control::Hello hello{.version = DDP_VERSION_STRING,
                       .run_id = question_.step,
                       .host = question_.node_name,
                       .order = question_.node_rank,
                       .nproc = findings_.meeting.refusal.empty() ? static_cast<int>(question_.ranks.size()) : 0,
                       .program = question_.program,
                       .pid = ::getpid(),
                       .interfaces = launcher::interfaces_of(network_.search.candidates)};
  const auto own = store_server::Endpoint::own(fd);
  // If srun runs on this host, the ranks' store runs beside it.
  if (own && !own->address.is_loopback() && !is_this_host(question_.srun_address))
    hello.addresses.push_back(own->address.text());
  return hello;
}

void StepAgent::handle(const control::Message& message) {
  if (const auto* plan = std::get_if<control::PrepareAttempt>(&message)) {
    prepare(*plan);
  } else if (const auto* start = std::get_if<control::StartAttempt>(&message)) {
    use_store(*start);
  } else if (const auto* noted = std::get_if<control::RankEndNoted>(&message)) {
    if (noted->local_rank == awaited_end_) confirm_end(DdpStepClient::kInheritedFd);
  } else if (const auto* order = std::get_if<control::ObserveRanks>(&message)) {
    observe(*order);
  } else if (const auto* end = std::get_if<control::Finish>(&message)) {
    findings_.meeting.step_ends = end->message.empty();
    findings_.meeting.flaw = end->message;
    answer();
  }
}

void StepAgent::prepare(const control::PrepareAttempt& plan) {
  if (static_cast<std::size_t>(plan.node_rank) >= plan.nodes.size()) return;
  const control::NodeLayout& own = plan.nodes[static_cast<std::size_t>(plan.node_rank)];
  agreed_ = topology::SocketInterface{.name = own.socket_interface, .reason = own.socket_reason};
  for (const topology::InterfaceCandidate& each : network_.search.candidates) {
    if (each.interface == own.socket_interface) agreed_->address = each.at.address.address;
  }
  still_after_ = std::chrono::milliseconds{plan.still_after_ms};
  if (network_.several_nodes) {
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - joined_at_;
    findings_.remarks.push_back(fmt::format("agreeing with the other {} nodes on a network took {:.0f} ms",
                                            question_.num_nodes - 1, took.count()));
  }
  if (plan.serve_store) serve_store();
}

/// Ranks look for rank 0's servers at MASTER_ADDR, and its store is one of those.
void StepAgent::serve_store() {
  try {
    const auto key = store_server::StoreKey::make();
    server_ = std::make_unique<store_server::StoreServer>(store_server::StoreServerOptions{.key = key});
    loop_.watch(server_->refusals_fd(), [this] {
      for (const std::string& line : server_->take_refusals()) {
        send(control::ConsoleOutput{
            .error = true, .pieces = {{.text = fmt::format("srun: ddp: warning: the step's store {}\n", line)}}});
      }
    });
    send(control::AttemptPrepared{.store_port = server_->port(), .store_key = key.text()});
  } catch (const std::exception& error) {
    server_.reset();
    send(control::AttemptFailed{.message = error.what()});
  }
}

void StepAgent::use_store(const control::StartAttempt& start) {
  Meeting& meeting = findings_.meeting;
  const bool beside_srun = start.store_addresses.empty();
  if (beside_srun && server_) {  // this node served it too late
    loop_.forget(server_->refusals_fd());
    server_.reset();
  }
  meeting.store_address = beside_srun ? question_.srun_address : start.store_addresses.front();
  meeting.store_port = static_cast<std::uint16_t>(start.store_port);
  try {
    if (!server_) {
      const Deadline deadline = Deadline::after(kStoreReachLimit);
      witness_ = std::make_unique<store_server::Witness>(meeting.store_address, meeting.store_port,
                                                         store_server::StoreKey::parse(start.store_key), deadline);
      store_server::check_served(meeting.store_address, meeting.store_port, deadline);
    }
  } catch (const std::exception& error) {
    meeting.flaw = error.what();
  }
  answer();
}

/// Answers once: whatever comes later follows the programs' start.
void StepAgent::answer() {
  decision_due_.reset();
  if (!planner_) return;
  NetworkChoice choice = choose_network(network_, agreed_, environment_);
  findings_.interface = choice.interface.name;
  findings_.interface_address = choice.interface.address;
  findings_.interface_reason = choice.interface.reason;
  findings_.remarks.insert(findings_.remarks.end(), choice.remarks.begin(), choice.remarks.end());
  if (!findings_.meeting.reached && network_.several_nodes)
    findings_.remarks.emplace_back(
        "the nodes do not agree on a network: each uses the interface that routes to the others");
  if (!choice.warning.empty()) findings_.warning += (findings_.warning.empty() ? "" : "; ") + choice.warning;
  try {
    base::send_all(planner_.get(), framed(base::encode(findings_)), Deadline::after(std::chrono::seconds(1)),
                   "passing on the other nodes' answers");
  } catch (const std::exception&) {  // the planner has ended: its tasks start without a plan
  }
  planner_.reset();
  let_go_of({STDERR_FILENO});
  [[maybe_unused]] const int ignored = ::chdir("/");
  start_sweep();
  if (!question_.has_channel && server_ == nullptr) finished_ = true;
}

/// With Slurm's job_container each task has started an agent; one stays for the store if the store needs it.
void StepAgent::stay_as_witness() {
  if (!question_.has_channel && server_ == nullptr && witness_) witness_->wait();
}

// ---- tasks ----------------

std::optional<int> StepAgent::local_rank(std::int64_t rank) const {
  const auto found = std::find(question_.ranks.begin(), question_.ranks.end(), rank);
  if (found == question_.ranks.end()) return std::nullopt;
  return static_cast<int>(found - question_.ranks.begin());
}

void StepAgent::take_news() {
  for (;;) {
    bool ended = false;
    const TaskNews news = srun_plugin::take_news(DdpStepClient::kInheritedFd, ended);
    if (const auto* start = std::get_if<TaskStart>(&news)) {
      task_started(*start);
    } else if (const auto* end = std::get_if<TaskEnd>(&news)) {
      task_ended(*end);
    } else {
      if (ended) loop_.forget(DdpStepClient::kInheritedFd);
      finished_ = finished_ || ended;
      return;
    }
  }
}

void StepAgent::task_started(const TaskStart& start) {
  const auto local = local_rank(start.rank);
  if (!local) return;
  running_[*local] = start.pid;
  pids_[static_cast<std::size_t>(*local)] = start.pid;
  if (++started_ != pids_.size()) return;
  send(control::RanksStarted{.pids = pids_});
  watch_standstill();
}

void StepAgent::task_ended(const TaskEnd& end) {
  const auto local = local_rank(question_.first_rank + std::int64_t{end.task});
  if (!local) return;
  running_.erase(*local);
  if (end.awaited != 0) awaited_end_ = *local;
  if (running_.empty() && standstill_) {
    loop_.forget(standstill_->fd());
    standstill_.reset();
  }
  send(control::RankEnded{.local_rank = *local, .end = end_of(end)});
  // Tasks of other nodes wait for this one.
  if (!findings_.meeting.refusal.empty()) send(control::SignalReceived{.signal = SIGTERM, .by_slurm = true});
}

void StepAgent::watch_standstill() {
  if (still_after_ == std::chrono::milliseconds{0} || running_.empty()) return;
  std::vector<pid_t> processes;
  for (const auto& [local, pid] : running_) processes.push_back(pid);
  try {
    standstill_ = std::make_unique<diagnostics::StandstillWatch>(std::move(processes), still_after_);
    loop_.watch(standstill_->fd(), [this] {
      if (const auto still = standstill_->take()) send(control::RanksStill{.still = *still});
    });
  } catch (const std::exception&) {  // no more threads: this node's hangs go unreported
  }
}

/// Starts looking, unless it already looks, and reports what it has seen.
void StepAgent::observe(const control::ObserveRanks& order) {
  const auto tell = [this](const diagnostics::HostFacts& facts) {
    send(control::RanksObserved{.facts = diagnostics::encode(facts)});
  };
  if (observer_) {
    const auto facts = observer_->take();
    if (!facts) return;
    loop_.forget(observer_->fd());
    observer_.reset();
    return tell(*facts);
  }
  std::vector<diagnostics::FoundRank> ranks;
  for (const auto& [local, pid] : running_) {
    diagnostics::RankIdentity identity;
    identity.rank = question_.ranks[static_cast<std::size_t>(local)];
    identity.world_size = static_cast<int>(question_.world_size);
    identity.local_size = static_cast<int>(question_.ranks.size());
    ranks.push_back({.pid = pid, .identity = std::move(identity)});
  }
  try {
    observer_ = std::make_unique<diagnostics::RankObserver>(std::move(ranks), question_.node_name,
                                                            Deadline::after(std::chrono::milliseconds{order.limit_ms}));
    loop_.watch(observer_->fd(), [this] { observe({}); });
  } catch (const std::exception& error) {
    tell({.host = question_.node_name, .notes = {error.what()}});
  }
}

void StepAgent::beat() {
  coordinator_->beat();
  if (!metrics_) return;
  if (auto progress = metrics_->progress_due()) send(*progress);
}

/// Slurm ends the step, which tasks that have not started their programs would not notice.
void StepAgent::terminated() {
  signalfd_siginfo info{};
  while (::read(termination_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
  }
  send(control::SignalReceived{.signal = SIGTERM, .by_slurm = true});
  if (!planner_) return;
  findings_.meeting.step_ends = true;
  answer();
}

// ---- the process ----------------

/// For a step with no other node to agree with.
NodeFindings findings_alone(const NodeQuestion& question, const base::Environment& environment) {
  const OwnNetwork own = read_own_network(question, environment);
  const NetworkChoice choice = choose_network(own, {}, environment);
  NodeFindings findings{.interface = choice.interface.name,
                        .interface_address = choice.interface.address,
                        .interface_reason = choice.interface.reason,
                        .remarks = choice.remarks,
                        .warning = choice.warning};
  if (own.several_nodes) findings.remarks.emplace_back("without a store the nodes do not agree on a network");
  return findings;
}

/// Starts the agent as a process of its own. @return where it writes its findings; nothing if it could not be started.
base::UniqueFd start_agent(const NodeQuestion& question) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw base::system_error("starting the node's agent (socketpair)", errno);
  base::UniqueFd own{ends[0]}, agents{ends[1]};
  const pid_t pid = ::fork();
  if (pid < 0) throw base::system_error("starting the node's agent (fork)", errno);
  if (pid > 0) return own;
  own.reset();
  let_go_of({STDIN_FILENO, STDOUT_FILENO});  // the caller waits for the output's end
  int status = 1;
  try {
    StepAgent(question, std::move(agents), base::Environment::process()).run();
    status = 0;
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-step: {}", error.what()));
  }
  ::_exit(status);
}

void write_output(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, data.data(), data.size());
    if (count < 0 && errno != EINTR) throw base::system_error("writing the plan of this node", errno);
    if (count > 0) data = data.subspan(static_cast<std::size_t>(count));
  }
}

NodeAnswer plan_node(const NodeQuestion& question, int agent, const base::Environment& environment) {
  const auto resources = base::decode<NodeResources>(read_framed(STDIN_FILENO, Deadline::after(kResourcesLimit)));
  std::string flaw;
  std::optional<Topology> topology;
  try {
    // Reads this machine while the nodes wait for each other.
    if (!resources.tasks.empty()) topology = Topology::live();
  } catch (const std::exception& error) {
    flaw = error.what();
  }
  const NodeFindings findings =
      agent < 0 ? findings_alone(question, environment)
                : base::decode<NodeFindings>(read_framed(
                      agent, Deadline::after(std::chrono::seconds{question.patience_seconds} + kFindingsReserve)));
  if (!findings.warning.empty()) base::write_stderr_line(fmt::format("ddp: warning: {}", findings.warning));
  const auto nccl_conf = base::read_nccl_conf(environment, base::home_folder(environment));
  try {
    if (topology) return make_answer(&*topology, question, resources, findings, environment, nccl_conf);
  } catch (const std::exception& error) {
    flaw = error.what();
  }
  NodeAnswer answer = make_answer(nullptr, question, resources, findings, environment, nccl_conf);
  answer.flaw = std::move(flaw);
  return answer;
}

}  // namespace

int answer_node() {
  // Signals that the user sends to the step's processes are not meant for the agent.
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &termination, nullptr);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE}) ::signal(signal, SIG_IGN);
  try {
    const auto question = base::decode<NodeQuestion>(read_framed(STDIN_FILENO, Deadline::after(kQuestionLimit)));
    base::UniqueFd agent;
    if (question.port != 0) agent = start_agent(question);
    if (question.has_channel) ::close(DdpStepClient::kInheritedFd);
    ::pthread_sigmask(SIG_UNBLOCK, &termination, nullptr);
    write_output(base::encode(plan_node(question, agent ? agent.get() : -1, base::Environment::process())));
    return 0;
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-step: {}", error.what()));
    return 1;
  }
}

}  // namespace ddp::srun_plugin
