#include "launch/launch.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/version.hpp>

#include "agent/agent.hpp"
#include "base/backend_file.hpp"
#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "cli/option_values.hpp"
#include "control/handshake.hpp"
#include "coordinator/coordinator.hpp"
#include "coordinator/job_console.hpp"
#include "events/signal_inbox.hpp"
#include "launch/agent_settings.hpp"
#include "launch/expander.hpp"
#include "launch/freed_nodes.hpp"
#include "launch/host_agents.hpp"
#include "launch/job_file.hpp"
#include "launch/job_input.hpp"
#include "launch/job_reporter.hpp"
#include "launch/joining_allocation.hpp"
#include "launch/launch_role.hpp"
#include "launch/launcher_process.hpp"
#include "launch/no_kill.hpp"
#include "launch/node_order.hpp"
#include "launch/own_network.hpp"
#include "launch/rendezvous.hpp"
#include "launch/rendezvous_proof.hpp"
#include "launch/slurm_frontend.hpp"
#include "launch/waiting_hint.hpp"
#include "outcome/exit_error.hpp"
#include "pmix_server/scratch_directory.hpp"
#include "report/json_report.hpp"
#include "slurm/slurmstepd.hpp"
#include "workers/orphans.hpp"
#include "workers/worker_group.hpp"

namespace ddp::launcher {
namespace {

// Time for an agent over ssh to reach its frontend.
constexpr std::chrono::milliseconds kFrontendPatience{30'000};
// srun's own exit code, as for an unknown job; any other is a task's.
constexpr int kSrunRefused = 1;
// Time for standard error to take the output of the hosts' ssh.
constexpr std::chrono::milliseconds kWordsPatience{1'000};
// Time to remove folders of jobs that were killed: the next ddprun removes the rest.
constexpr std::chrono::seconds kSweepLimit{1};

void say(const std::string& text) { base::write_stderr_line(fmt::format("ddprun: {}", text)); }

void print_startup_warnings(const LaunchOptions& options, const base::Environment& environment) {
  for (const std::string& notice : options.notices) say(notice);
  for (const auto& [name, closest] : environment.unknown_ddp_variables()) {
    say(fmt::format("warning: the environment variable {} is not known; did you mean {}?", name, closest));
  }
}

bool is_among(int signal, const std::vector<int>& list) {
  return std::find(list.begin(), list.end(), signal) != list.end();
}

/// Signals, the coordinator and the agent of one process, in one loop.
class Process {
 public:
  Process(const LaunchOptions& options, const base::Environment& environment, RoleDecision role,
          const std::vector<std::string>& arguments)
      : options_(options),
        environment_(environment),
        role_(std::move(role)),
        arguments_(arguments),
        reporter_(options) {
    peers_.peer_timeout = base::peer_timeout(environment);
    // As in torchrun, standalone jobs share nothing, not even a name.
    if (options.standalone) options_.rendezvous.run_id = control::Secret::random().to_hex().substr(0, 32);
  }

  int run() {
    hold_signals(options_.forwarded_signals);  // held while it waits for other nodes; terminating ones end it
    if (role_.role == LaunchRole::frontend) {
      FrontendRendezvous rendezvous = meet_as_frontend(frontend_addresses(options_, role_.by_hosts, environment_));
      lead(std::move(rendezvous.listener), &rendezvous.point);
      return drive();
    }
    if (role_.role == LaunchRole::frontend_agent && !role_.by_hosts) leave_task_binding();
    prepare_node();
    if (role_.role == LaunchRole::alone) {
      network_.addresses =
          options_.local_addr.empty() ? std::vector<std::string>{"127.0.0.1"} : resolve_local_addr(options_.local_addr);
      lead(nullptr, nullptr);
    } else {
      meet();
    }
    return drive();
  }

 private:
  /// Another host that the job's traffic must reach.
  std::string rendezvous_host() const {
    if (role_.by_hosts) return RendezvousPoint::decode(environment_.raw(kAgentVariable).value_or("")).addresses.front();
    const std::string& endpoint = options_.rendezvous.endpoint_host;
    return endpoint.empty() ? options_.rendezvous.master_addr : endpoint;
  }

  /// Prepares what does not depend on other nodes. An error here ends the whole job: one agent among several keeps it
  /// for the coordinator.
  void prepare_node() {
    job_ = std::make_unique<NodeJob>();
    job_->host = base::host_name();
    job_->environment = environment_;
    or_refuse([this] {
      job_->command = resolve_command(options_, environment_);
      require_backend();
      job_->placement = NodePlacement::of_this_host(options_, environment_);
      job_->descriptor_limit = raise_descriptor_limit(job_->placement->nproc());
    });
  }

  /// Checks before a rank would find out by itself. libddp.so is in bin/../lib, or where the loader looks.
  void require_backend() const {
    const std::string inherited = environment_.raw("DDP_BACKEND").value_or("");
    const std::string own = own_path();
    const std::string prefix = own.substr(0, own.rfind("/bin/")) + "/";
    base::require_backend_files(
        options_.backend.empty() ? "reading the environment variable DDP_BACKEND" : "reading --backend",
        options_.backend.empty() ? inherited : options_.backend, environment_,
        std::vector<std::string>{prefix + "lib", prefix + "lib64"});
  }

  template <class Step>
  void or_refuse(const Step& step) {
    try {
      step();
    } catch (const Error& error) {
      if (role_.role == LaunchRole::alone) throw;
      const auto* exit = dynamic_cast<const ExitError*>(&error);
      job_->refusal = NodeRefusal{.message = error.what(), .exit_status = exit != nullptr ? exit->exit_status() : 1};
    }
  }

  void meet() {
    // A frontend listens before it starts agents over ssh; agents that outlive it should not wait long.
    const std::chrono::milliseconds patience = options_.rendezvous.join_timeout;
    const auto began = Deadline::Clock::now();
    const Deadline deadline{began + (role_.by_hosts ? std::min(patience, kFrontendPatience) : patience)};
    const std::string host = rendezvous_host();
    or_refuse([&] { network_ = own_network(options_.local_addr, host, environment_, deadline); });
    if (network_.addresses.empty()) network_ = own_network("", host, without_interface_names(environment_), deadline);
    Rendezvous rendezvous =
        role_.role == LaunchRole::frontend_agent ? meet_as_frontend_agent(environment_, deadline)
        : role_.role == LaunchRole::step_agent
            ? meet_in_step(role_, environment_,
                           step_addresses(network_.addresses, role_.task == 0, options_, environment_), deadline)
            : meet_at_endpoint(options_, environment_, began);
    order_ = rendezvous.order;
    if (rendezvous.listener) {
      if (options_.verbose)
        say(fmt::format("waiting for the other nodes at {}", fmt::join(rendezvous.listener->addresses(), ", ")));
      const RendezvousPoint point{.addresses = rendezvous.addresses,
                                  .port = rendezvous.port,
                                  .secret = rendezvous.secret.value_or(control::Secret::random()),
                                  .host = job_->host};
      lead(std::move(rendezvous.listener), &point);
    } else {
      control::Connection coordinator =
          rendezvous.connect(role_.role == LaunchRole::endpoint ? own_endpoint_remark(host) : "");
      if (role_.role == LaunchRole::frontend_agent && role_.by_hosts) leave_standard_input();
      coordinator.set_peer(rendezvous.host.empty()
                               ? fmt::format("the coordinator at {}", coordinator.peer())
                               : fmt::format("the coordinator on {} ({})", rendezvous.host, coordinator.peer()));
      start_agent(std::move(coordinator));
    }
  }

  /// Runs the coordinator in this process, and this node's agent except in a frontend.
  void lead(std::unique_ptr<control::Listener> listener, const RendezvousPoint* point) {
    make_signals();
    // Strangers who crowd the listener must not use up the job's descriptors.
    // Each ssh has a pidfd, its output and, at first, its input.
    const int each = role_.role == LaunchRole::frontend && role_.by_hosts ? 4 : 1;
    const bool open = role_.role == LaunchRole::endpoint || role_.joinable();
    const int spares = open ? std::max(role_.spares, role_.nodes.max) : role_.spares;
    const auto agents = static_cast<std::size_t>(role_.nodes.max + spares);
    allow_connections(static_cast<rlim_t>(agents) * each + (listener ? control::max_pending(agents) : 0), 0);
    if (listener) listener->expect(agents);
    CoordinatorOptions coordination = coordinator_options(options_, role_, environment_);
    coordination.peers = peers_;
    coordination.progress_interval = reporter_.progress_interval();
    const bool job_console = coordination.job_console;
    coordination.input = role_.role == LaunchRole::frontend && options_.standard_input == StandardInput::rank_zero &&
                         !options_.dry_run && !input_is_empty();
    CoordinatorEvents events = reporter_.events(environment_);
    events.agent_joined = [this](std::int64_t order) {
      if (hosts_) hosts_->joined(order);
      joined_ = true;
    };
    events.node_freed = [this](const std::string& allocation, const std::string& node) {
      if (freed_) freed_->add(allocation, node);
    };
    events.waiting_hint = [this] { return hosts_ ? hosts_->awaited() : waiting_hint(options_, role_, environment_); };
    if (job_console) write_console(events);
    if (coordination.input) hand_on_input(events);
    if (role_.elastic() && point != nullptr && !options_.dry_run) let_others_ask(events, *point);
    coordinator_ = std::make_unique<Coordinator>(std::move(coordination), loop_, std::move(events));
    if (role_.role == LaunchRole::frontend && role_.by_hosts) {
      start_hosts(*point);
    } else if (role_.role == LaunchRole::frontend) {
      const StepInput input = step_input(options_.standard_input);
      const NodeOrder order = order_of_nodes(environment_);
      if (!order.remark.empty()) say(order.remark);
      srun_ = std::make_unique<SrunProcess>(
          agent_step_command(role_.components, own_path(), arguments_, input.tasks, order.nodes),
          agent_step_environment(environment_, *point), input.stream ? input.stream.get() : STDIN_FILENO);
      loop_.watch(srun_->pidfd(), [this] { srun_ended(); });
      if (role_.elastic()) no_kill_ = std::make_unique<NoKillCheck>(loop_, environment_);
      if (role_.elastic()) freed_ = std::make_unique<FreedNodes>(loop_, environment_);
      if (role_.expands) expander_ = std::make_unique<Expander>(loop_, environment_, *coordinator_);
    }
    if (listener) coordinator_->listen(std::move(listener));
    if (role_.role == LaunchRole::frontend) return;
    control::ConnectionPair pair = control::make_pair();
    coordinator_->add_own(control::Connection{std::move(pair.first), fmt::format("the agent on {}", job_->host)});
    start_agent(control::Connection{std::move(pair.second), "the coordinator"});
  }

  void start_hosts(const RendezvousPoint& point) {
    hosts_ = std::make_unique<HostAgents>(
        loop_, options_, static_cast<std::size_t>(role_.agents()), own_path(), environment_,
        settings_for_agents(point.encode(), arguments_, environment_),
        HostAgents::Events{
            .missing = [this](auto count, const auto& why) { return coordinator_->agents_missing(count, why); },
            .left = [this](std::int64_t node, const std::string& why) { coordinator_->agent_left(node, why); }});
  }

  /// srun would break up lines of the nodes, so this process writes them.
  void write_console(CoordinatorEvents& events) {
    console_ = std::make_unique<JobConsole>(
        loop_, STDOUT_FILENO, STDERR_FILENO,
        [this](int link, const control::ConsoleTaken& taken) { coordinator_->output_taken(link, taken); });
    events.output = [this](int link, const control::ConsoleOutput& output) { console_->write(link, output); };
    events.before_attempt = [this] { console_->rest(); };  // the agent of this process will fork
  }

  void hand_on_input(CoordinatorEvents& events) {
    input_ = std::make_unique<JobInput>(loop_, STDIN_FILENO,
                                        [this](const control::Input& piece) { coordinator_->send_input(piece); });
    events.input_wanted = [this](bool anew) { input_->begin(anew); };
    events.input_taken = [this](std::int64_t bytes) { input_->taken(bytes); };
  }

  /// From the first generation's start on: then no node of this allocation is missing.
  void let_others_ask(CoordinatorEvents& events, const RendezvousPoint& point) {
    events.started = [this, point, told = std::move(events.started)](int started, int world_size, int num_nodes) {
      told(started, world_size, num_nodes);
      if (started < world_size || std::exchange(joinable_, true)) return;
      try {
        AgentSettings settings = settings_for_agents(point.encode(), arguments_, environment_);
        if (const auto phrase = environment_.raw(kPhraseVariable); phrase && role_.role == LaunchRole::endpoint)
          settings.environment.insert_or_assign(kPhraseVariable, *phrase);
        job_file_.emplace(own_job_file(), settings);
      } catch (const Error& error) {
        if (role_.joinable() || options_.verbose)
          say(fmt::format("warning: nodes of other allocations cannot join, nor can ddp-info resize the job: {}",
                          error.what()));
      }
    };
  }

  /// By what its user calls the job: Slurm's allocation or step, else this process.
  std::string own_job_file() const {
    if (role_.joinable()) return job_file_path(environment_, environment_.raw("SLURM_JOB_ID").value_or(""));
    const auto step = base::SlurmStep::read(environment_);
    if (role_.role == LaunchRole::step_agent && role_.engine.empty() && step.kind == base::SlurmStep::Kind::user)
      return job_file_path(environment_, step.name);
    return job_file_path(environment_, base::host_name(), ::getpid());
  }

  void make_signals() {
    if (signals_) return;
    std::vector<int> signals = options_.handled_signals();
    if (!is_among(SIGTSTP, signals)) signals.push_back(SIGTSTP);
    signals_ = std::make_unique<SignalInbox>(signals);
    if (job_) job_->hangup_ignored = signals_->hangup_ignored();
    become_subreaper();
    loop_.watch(signals_->fd(), [this] { take_signals(); });
  }

  void start_agent(control::Connection coordinator) {
    make_signals();
    or_refuse([this] {
      const std::string folder = temporary_folder(environment_);
      for (const std::string& parent : {folder, std::string{base::kMemoryFolder}})
        base::remove_left_scratch(parent, Deadline::after(kSweepLimit));
      scratch_.emplace(folder);
      job_->scratch = scratch_->path();
      if (options_.max_restarts > 0 || options_.spares > 0 || role_.elastic()) make_memory_folder();
      if (options_.dry_run || !needs_log_folder(options_.logs)) return;
      options_.logs.directory = make_log_folder(temporary_folder(environment_));
      say(fmt::format("the log files are in {} on {}", *options_.logs.directory, base::host_name()));
    });
    job_->options = options_;
    job_->peers = peers_;
    agent_ = std::make_unique<Agent>(
        *job_,
        control::Hello{
            .version = DDP_VERSION_STRING,
            .run_id = options_.rendezvous.run_id,
            .host = job_->host,
            .addresses = network_.addresses,
            .order = order_,
            .nproc = job_->placement ? job_->placement->nproc() : 0,
            .role = options_.role,
            .program = options_.command.front(),
            .pid = ::getpid(),
            .interfaces = network_.interfaces,
            .allocation = allocation(),
            .slurm_node = allocation().empty() ? "" : environment_.raw("SLURMD_NODENAME").value_or(""),
            .settings = role_.role == LaunchRole::endpoint ? options_.given_settings : std::vector<std::string>{}},
        std::move(coordinator), loop_, start_attempt_process, AgentLimits{},
        [this](const NodeJob& job, const control::PrepareAttempt& like, bool first) {
          if (console_) console_->rest();  // this process will fork
          return start_standby_process(job, like, first);
        });
  }

  /// For what outlives ranks that are to start again (DDP_NODE_CACHE).
  void make_memory_folder() {
    try {
      memory_.emplace(base::kMemoryFolder);
      job_->memory = memory_->path();
    } catch (const Error& error) {
      if (options_.verbose) say(fmt::format("no copies of checkpoints in memory: {}", error.what()));
    }
  }

  /// Whose agents a frontend has started.
  std::string allocation() const {
    const bool by_srun = role_.role == LaunchRole::frontend_agent && !role_.by_hosts;
    return by_srun ? environment_.raw("SLURM_JOB_ID").value_or("") : "";
  }

  void take_signals() {
    for (const auto& [signal, sender] : signals_->take()) {
      if (signal == SIGCHLD) {
        if (agent_) agent_->child_ended();
      } else if (signal == SIGTSTP && !is_among(SIGTSTP, options_.handled_signals())) {
        suspend();
      } else if (!agent_) {
        coordinator_->signal_received(signal, is_slurmstepd(sender));
      } else if (is_among(signal, options_.ending_signals)) {
        agent_->ending_signal(signal, is_slurmstepd(sender));
      } else {
        agent_->forward_signal(signal, is_slurmstepd(sender));
      }
    }
  }

  /// Ctrl-Z, and Slurm's suspension of a job: stops first the ranks, which have sessions of their own, then this
  /// process. SIGCONT resumes it.
  void suspend() {
    if (coordinator_) coordinator_->suspend();
    if (agent_) agent_->suspend(!coordinator_);
    ::kill(::getpid(), SIGSTOP);
    if (agent_) agent_->resume(!coordinator_);
    if (coordinator_) coordinator_->resume();
  }

  void srun_ended() {
    loop_.forget(srun_->pidfd());
    const int status = srun_->exit_status().value_or(-1);
    if (coordinator_->finished()) return;
    coordinator_->agents_lost(fmt::format("srun ended (exit code {}) before the job was over", status),
                              status > 0 ? status : 1,
                              !joined_ && status == kSrunRefused ? stale_job_hint(environment_) : "");
  }

  int drive() {
    while ((coordinator_ && !coordinator_->finished()) || (agent_ && !agent_->finished())) {
      Deadline deadline = Deadline::after(std::chrono::hours(24));  // without another limit
      for (const auto& limit :
           {coordinator_ ? coordinator_->next_deadline() : std::nullopt,
            agent_ ? agent_->next_deadline() : std::nullopt, hosts_ ? hosts_->next_deadline() : std::nullopt,
            input_ ? input_->next_deadline() : std::nullopt, expander_ ? expander_->next_deadline() : std::nullopt,
            freed_ ? freed_->next_deadline() : std::nullopt}) {
        if (limit) deadline = earlier(deadline, *limit);
      }
      loop_.run_once(deadline);
      if (expander_) expander_->time_passed();
      if (no_kill_) no_kill_->time_passed();
      if (freed_) freed_->time_passed();
      if (coordinator_) coordinator_->time_passed();
      if (agent_) agent_->time_passed();
      if (hosts_ && !coordinator_->finished()) hosts_->time_passed();
      if (input_) input_->time_passed();
    }
    job_file_.reset();
    input_.reset();
    no_kill_.reset();
    freed_.reset();
    if (expander_) expander_->time_passed();  // none is wanted any more
    if (console_) console_->finish([this](auto... since) { return coordinator_->reader_limit(since...); });
    if (srun_) {
      end_launchers(loop_, *coordinator_,
                    {.name = expander_ ? "srun or salloc" : "srun",
                     .ended = [this] { return srun_->exit_status().has_value() && (!expander_ || expander_->ended()); },
                     .end =
                         [this](Deadline deadline) {
                           if (expander_) expander_->end(deadline);
                           srun_->end(deadline);
                         }});
    } else if (hosts_) {
      hosts_->stop();
      end_launchers(loop_, *coordinator_,
                    {.name = starter(options_),
                     .ended = [this] { return hosts_->ended(); },
                     .end = [this](Deadline deadline) { hosts_->end(deadline); }});
      hosts_->finish_words(Deadline::after(readers_keep_up() ? kWordsPatience : coordinator_->drain_time()));
    }
    if (!coordinator_) return agent_->exit_status();
    reporter_.report(*coordinator_, environment_);
    return coordinator_->exit_status();
  }

  LaunchOptions options_;
  const base::Environment& environment_;
  RoleDecision role_;
  const std::vector<std::string>& arguments_;
  JobReporter reporter_;
  PeerLimits peers_;
  std::int64_t order_ = -1;
  bool joined_ = false;    ///< an agent has joined
  bool joinable_ = false;  ///< its nodes have joined, so those of other allocations may
  std::optional<JobFile> job_file_;
  OwnNetwork network_;
  std::unique_ptr<NodeJob> job_;
  std::optional<ScratchDirectory> scratch_;
  std::optional<ScratchDirectory> memory_;
  stream::EventLoop loop_;
  std::unique_ptr<SignalInbox> signals_;
  std::unique_ptr<SrunProcess> srun_;
  std::unique_ptr<JobConsole> console_;
  std::unique_ptr<JobInput> input_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<HostAgents> hosts_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Expander> expander_;
  std::unique_ptr<NoKillCheck> no_kill_;
  std::unique_ptr<FreedNodes> freed_;
};

}  // namespace

int launch(LaunchOptions options, base::Environment environment, const std::vector<std::string>& arguments) {
  if (!options.join.empty()) return join_job(options, environment);
  if (std::string remark = unite_hosts(options.hosts); !remark.empty()) options.notices.push_back(std::move(remark));
  std::optional<base::EngineTask> task;
  if (!environment.has(kAgentVariable) && !options.standalone && options.hosts.empty())
    task = task_of_engine(environment, Deadline::after(options.rendezvous.join_timeout));
  RoleDecision role = decide_role(options, environment, task);
  settle_single_host(options, role);
  if (options.expands() && role.role != LaunchRole::frontend_agent && !role.joinable())
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "reading --replace and --grow-to",
                     .cause = "this ddprun does not lead a Slurm allocation of several nodes",
                     .hint = "call it without srun in sbatch or salloc, or leave them out"}};
  for (const std::string& setting : options.given_settings) {
    if (role.elastic()) break;
    options.notices.push_back(
        fmt::format("{} is ignored: the job's nodes are fixed; --nnodes MIN:MAX and --spares let them change",
                    setting.substr(0, setting.find('='))));
  }
  if (role.role != LaunchRole::frontend_agent) print_startup_warnings(options, environment);
  // A frontend's host may lack what the nodes have.
  if (role.role != LaunchRole::frontend || role.by_hosts) {
    const std::string remark = leave_missing_temporary_folder(environment);
    const bool first = role.role == LaunchRole::step_agent
                           ? role.task == 0
                           : environment.number("SLURM_PROCID").value_or(role.by_hosts ? -1 : 0) == 0;
    if (first && !remark.empty()) say(fmt::format("{}: {}", base::host_name(), remark));
  }
  // A frontend has already logged it for its agents.
  if (options.verbose && role.role != LaunchRole::frontend_agent)
    say(fmt::format("{}: {}", base::host_name(), role.reason));
  if (!options.report_json.empty() && role.role != LaunchRole::frontend_agent) check_report_file(options.report_json);
  return Process{options, environment, std::move(role), arguments}.run();
}

std::string temporary_folder(const base::Environment& environment) {
  const std::string folder = environment.raw("TMPDIR").value_or("");
  return folder.empty() ? "/tmp" : folder;
}

std::string leave_missing_temporary_folder(base::Environment& environment) {
  const std::string folder = environment.raw("TMPDIR").value_or("");
  struct stat facts {};
  // A folder that exists but is unusable, for example full, was chosen for a reason.
  if (folder.empty() || ::stat(folder.c_str(), &facts) == 0 || (errno != ENOENT && errno != ENOTDIR)) return {};
  auto variables = environment.variables();
  variables.erase("TMPDIR");
  environment = base::Environment{std::move(variables)};
  ::unsetenv("TMPDIR");
  return fmt::format("warning: there is no folder '{}' (TMPDIR) here: ddprun and the ranks use /tmp",
                     cli::printable(folder));
}

}  // namespace ddp::launcher
