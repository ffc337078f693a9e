// The begin and end of an attempt on a node.
#include "agent/attempt.hpp"

#include <pmix_common.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "agent/store_reach.hpp"
#include "base/log.hpp"
#include "kvs/pmix_library.hpp"
#include "outcome/error_file.hpp"
#include "outcome/exit_error.hpp"
#include "workers/orphans.hpp"
#include "workers/spawn.hpp"

namespace ddp::launcher {
namespace {

// A program on an unresponsive file system must not block the others forever.
constexpr std::chrono::seconds kSpawnLimit{60};
// How much later than the agent this process may get a signal from slurmstepd, which signals processes one by one.
constexpr std::chrono::milliseconds kWitnessPatience{50};
// Time for the kernel to end killed workers and then what they left: first for a restart, which needs what they hold,
// then for the end of the job (see coordinator_end.cpp).
constexpr std::chrono::seconds kWorkerEndLimit{5};
constexpr std::chrono::milliseconds kLastWorkerEndLimit{500};
constexpr std::chrono::seconds kOrphanLimit{6};
constexpr std::chrono::seconds kLastOrphanLimit{2};
// Time for processes that outlived their worker to react to SIGTERM.
constexpr std::chrono::seconds kOrphanGrace{1};
constexpr std::chrono::seconds kFarewellLimit{5};
constexpr std::chrono::seconds kStoreLimit{30};
constexpr int kBatch = 32;
// A rank's main client and its clones (torch's heartbeat and flight recorder).
constexpr rlim_t kStoreConnections = 3;

bool reads_input(StandardInput input, int rank) {
  return input == StandardInput::all || (input == StandardInput::rank_zero && rank == 0);
}

}  // namespace

Attempt::Attempt(const NodeJob& job, const control::PrepareAttempt& plan, control::Connection agent,
                 std::shared_ptr<control::Connection> job_console, StandbyWork* standby)
    : job_(job),
      plan_(plan),
      job_console_(std::move(job_console)),
      ranks_(ranks_of_node(plan.nodes, plan.node_rank)),
      agent_(
          loop_, std::move(agent), [this](const control::Message& message) { handle(message); },
          [this](const std::string&) { agent_lost(); }),
      signals_(job.options.handled_signals()),
      step_signals_(kWitnessPatience),
      workers_(std::make_unique<WorkerGroup>()),
      warm_(standby ? std::move(standby->warm) : nullptr),
      early_(standby ? std::move(standby->early) : std::vector<control::Message>{}),
      arrivals_(
          plan.epoch, [this](const control::FindAbsent& question) { send(question); },
          [this](std::uint64_t call) { pmix_->modex().answer(call, kvs::kHasArrived, {}); }),
      heartbeat_(loop_, job.peers.beat, [this] { beat(); }) {
  loop_.watch(signals_.fd(), [this] { take_signals(); });
}

Attempt::~Attempt() = default;

void Attempt::tell(const std::string& text) const {
  if (job_.options.verbose) base::write_stderr_line(fmt::format("ddprun: {}: {}", job_.host, text));
}

void Attempt::run() {
  try {
    prepare();
  } catch (const ExitError& error) {
    fail(error.what(), error.exit_status());
  } catch (const std::exception& error) {
    fail(error.what(), 1);
  }
  for (const control::Message& message : std::exchange(early_, {})) handle(message);
  // A wait without a limit wakes once a day, which is harmless.
  while (!over_) {
    const auto limit = pmix_ ? pmix_->modex().next_deadline() : std::nullopt;
    Deadline deadline = limit.value_or(Deadline::after(std::chrono::hours(24)));
    if (const auto settled = step_signals_.next_deadline()) deadline = earlier(deadline, *settled);
    if (const auto gathered = traces_ ? traces_->next_deadline() : std::nullopt)
      deadline = earlier(deadline, *gathered);
    if (observer_) deadline = earlier(deadline, observer_->deadline());
    if (stacks_) deadline = earlier(deadline, stacks_->deadline());
    try {
      loop_.run_once(deadline);
    } catch (const std::exception& error) {  // out of memory, or a message that is too long
      fail(error.what(), 1);
    }
    if (limit && pmix_) pmix_->modex().answer_overdue();
    signal_ranks();
    send_gathered();
    send_observed();
    send_stacks();
  }
  clean();
}

// ---- start ----------------

void Attempt::prepare() {
  become_subreaper();
  if (!job_.options.dump_env.empty()) ddp_info_ = find_ddp_info();
  scratch_use_ = share_scratch(job_.scratch);
  if (plan_.elastic) change_.emplace(job_.scratch, plan_.epoch);
  std::vector<NodeShape> shapes;
  for (const control::NodeLayout& node : plan_.nodes) shapes.push_back({.host = node.host, .num_ranks = node.nproc});
  const control::NodeLayout& own = plan_.nodes.at(static_cast<std::size_t>(plan_.node_rank));
  places_ = places_of_ranks(job_, plan_);
  std::string store_key;
  if (plan_.serve_store) store_key = serve_store(own.addresses);
  pmix_ = std::make_unique<PmixServer>(job_.scratch, job_.placement->topology_xml());
  name_space_ = std::make_unique<JobNamespace>(
      *pmix_, JobShape{.name_space = plan_.name_space, .nodes = shapes, .node_rank = plan_.node_rank});
  loop_.watch(pmix_->aborts().fd(), [this] { take_aborts(); });
  loop_.watch(pmix_->modex().fd(), [this] { take_modex(); });

  const LogFolders folders{job_.options.logs, job_.scratch,    plan_.log_name,
                           plan_.log_suffix,  plan_.node_rank, static_cast<int>(plan_.nodes.size())};
  if (folders.enabled() && !job_.options.dry_run) {
    log_folder_ = folders.make_attempt(plan_.epoch, ranks_.num_ranks);
    for (int local = 0; local < ranks_.num_ranks; ++local)
      rank_folders_.push_back(folders.make_rank(global_rank(local), ranks_.world_size));
  }
  const std::string& prefix = job_.options.logs.prefix_template;
  LogPumpOptions pump{.prefix_template = prefix.empty() && plan_.nodes.size() > 1 ? kRankPrefixTemplate : prefix,
                      .format = job_.options.logs.format,
                      .timestamps = job_.options.logs.timestamps,
                      .terminal_out = plan_.terminal_out || ::isatty(STDOUT_FILENO) == 1,
                      .terminal_err = plan_.terminal_err || ::isatty(STDERR_FILENO) == 1,
                      .host = job_.host,
                      .console_out = STDOUT_FILENO,
                      .console_err = STDERR_FILENO,
                      .job_console = job_console_,
                      .epoch = plan_.epoch,
                      .job_console_window_bytes = static_cast<std::size_t>(plan_.console_window_bytes),
                      .stdout_filters = job_.options.logs.stdout_filters,
                      .stderr_filters = job_.options.logs.stderr_filters};
  if (!log_folder_.empty()) {
    pump.filtered_stdout_file = log_folder_ + "/filtered_stdout.log";
    pump.filtered_stderr_file = log_folder_ + "/filtered_stderr.log";
  }
  logs_ = std::make_shared<LogPump>(std::move(pump));
  traces_ = std::make_unique<TraceGatherer>(
      [logs = logs_, folder = log_folder_, kept = folders.kept()](int local, const TraceGatherer::Add& add) {
        add({.stderr_tail = logs->tail(local)});
        const std::string path = LogFolders::error_file(folder, local);
        if (auto content = read_error_file(path))
          add({.error_file = kept ? path : "", .error_content = std::move(*content)});
      });
  loop_.watch(traces_->fd(), [this] { send_gathered(); });
  inheritable_ = without_task_identity(job_.environment.variables());
  send(control::AttemptPrepared{
      .epoch = plan_.epoch, .store_port = store_ ? store_->port() : 0, .store_key = std::move(store_key)});
}

/// @return the key for other nodes' witnesses; empty if there are no other nodes
std::string Attempt::serve_store(const std::vector<std::string>& addresses) {
  allow_connections(kStoreConnections * static_cast<rlim_t>(ranks_.world_size), ranks_.num_ranks);
  store_server::StoreServerOptions options;
  if (plan_.nodes.size() == 1) {
    options.listen_addresses = own_among(addresses);
  } else {
    options.key = store_server::StoreKey::make();
  }
  store_ = std::make_unique<store_server::StoreServer>(options);
  loop_.watch(store_->refusals_fd(), [this] { print_refusals(); });
  return options.key ? options.key->text() : std::string();
}

void Attempt::print_refusals() {
  for (const std::string& line : store_->take_refusals()) {
    const std::string whole = fmt::format("{}: the job's store {}", job_.host, line);
    base::write_stderr_line("ddprun: " + whole);
    if (store_refusals_.size() < kMostStoreRefusals) store_refusals_.push_back(whole);
  }
}

void Attempt::start(const control::StartAttempt& message) {
  std::string address;
  if (store_) {
    address = own_among(message.store_addresses).front();
  } else {
    ReachableStore store = reach_store(message.store_addresses, message.store_port,
                                       store_server::StoreKey::parse(message.store_key), Deadline::after(kStoreLimit));
    address = std::move(store.address);
    witness_ = std::move(store.witness);
  }
  if (plan_.epoch == 0) {
    report_conflicts();
    report_local_interface();
    report_shared_cores();
    report_no_warm_workers();
    check_ranks_filter();
  }
  const RankStore store{.address = std::move(address), .port = message.store_port};
  if (job_.options.dry_run) return describe_ranks(store);
  spawn_ranks(store);
}

RankStreams Attempt::streams_of(int local_rank) const {
  return plan_streams(job_.options.logs, log_folder_, global_rank(local_rank), local_rank, job_.options.role,
                      ::isatty(STDERR_FILENO) == 1, ranks_.world_size == 1, job_console_ != nullptr,
                      rank_folders_.empty() ? std::string{} : rank_folders_.at(static_cast<std::size_t>(local_rank)));
}

/// Opens them before the first worker starts, so that a log file that cannot be created is the job's error, not a
/// rank's.
std::vector<Attempt::Outlets> Attempt::open_outlets() {
  std::vector<Outlets> outlets;
  for (int local = 0; local < ranks_.num_ranks; ++local) {
    const RankStreams streams = streams_of(local);
    Outlets& rank = outlets.emplace_back();
    if (!streams.out.inherit) rank.out = logs_->add(streams.out.route);
    if (!streams.err.inherit) rank.err = logs_->add(streams.err.route);
  }
  logs_->start();
  return outlets;
}

/// Starts in batches: the kernel executes the programs of one while the next processes are forked.
void Attempt::spawn_ranks(const RankStore& store) {
  std::vector<Outlets> outlets = open_outlets();
  std::vector<std::int64_t> pids;
  for (int first = 0; first < ranks_.num_ranks && !over_; first += kBatch) {
    const int end = std::min(first + kBatch, ranks_.num_ranks);
    std::vector<StartingWorker> batch;
    for (int local = first; local < end; ++local) {
      Outlets& own = outlets[static_cast<std::size_t>(local)];
      batch.push_back(start_rank(local, environment_of(local, store), own));
      own = {};
    }
    const Deadline deadline = Deadline::after(kSpawnLimit);
    for (int local = first; local < end; ++local) {
      take_in(local, batch[static_cast<std::size_t>(local - first)].confirm(deadline));
      pids.push_back(workers_->pid(local));
    }
    // An order may end the start. Skipped after the last batch: RanksStarted precedes the ends of ranks.
    if (end < ranks_.num_ranks) loop_.run_once(Deadline::after(std::chrono::milliseconds(0)));
  }
  warm_.reset();
  send(control::RanksStarted{.epoch = plan_.epoch, .pids = std::move(pids)});
  watch_standstill();
}

EnvironmentMap Attempt::environment_of(int local, const RankStore& store) const {
  EnvironmentMap environment =
      rank_environment(start_of(local), inheritable_, store, LogFolders::error_file(log_folder_, local));
  if (change_) environment["DDP_CHANGE_DIR"] = change_->path();
  for (auto& [name, value] : name_space_->client_environment(global_rank(local))) environment[name] = value;
  return environment;
}

StartingWorker Attempt::start_rank(int local, const EnvironmentMap& environment, const Outlets& outlets) {
  SpawnRequest request = rank_request(start_of(local), environment);
  if (!reads_input(job_.options.standard_input, global_rank(local))) request.standard_input = -1;
  if (outlets.out) request.standard_output = outlets.out.get();
  if (outlets.err) request.standard_error = outlets.err.get();
  if (warm_) {
    if (auto warm = warm_->take(static_cast<std::size_t>(local), request, environment)) return std::move(*warm);
  }
  if (!job_.options.dump_env.empty()) dump_environment_first(request, ddp_info_, job_.options.dump_env);
  return start_worker(std::move(request));
}

void Attempt::take_in(int local, SpawnedProcess process) {
  workers_->add(std::move(process));
  watch_rank(local);
  for (const int signal : ordered_) ::kill(-workers_->pid(local), signal);  // sent before this rank started
  const std::string where =
      fmt::format("rank {} on {} (local rank {}): {}", global_rank(local), job_.host, local, place_of(local).summary);
  if (job_.options.report_bindings && plan_.epoch == 0) base::write_stderr_line(fmt::format("ddprun: {}", where));
  tell(fmt::format("started {}; pid {}", where, workers_->pid(local)));
}

void Attempt::fail(const std::string& message, int exit_status) {
  failed_ = unclean_ = true;
  warm_.reset();
  for (int local = 0; local < static_cast<int>(workers_->size()); ++local) {
    if (workers_->pidfd(local) >= 0) loop_.forget(workers_->pidfd(local));
  }
  workers_ = std::make_unique<WorkerGroup>();  // ends the ranks that had started
  send(control::AttemptFailed{.epoch = plan_.epoch, .message = message, .exit_status = exit_status});
}

// ---- end ----------------

void Attempt::clean() {
  warm_.reset();
  traces_.reset();
  standstill_.reset();
  observer_.reset();
  stacks_.reset();
  const std::vector<pid_t> ranks = workers_->pids();
  const bool last = plan_.restart_count >= plan_.max_restarts;
  const auto beat_if_due = [this] {
    if (heartbeat_.take_beat()) agent_.beat();
  };
  if (!agent_.open()) kill_descendants();
  const auto worker_limit = Deadline::after(last ? kLastWorkerEndLimit : kWorkerEndLimit);
  while (!workers_->end(earlier(worker_limit, Deadline::after(Heartbeat::kPause))) && !worker_limit.expired())
    beat_if_due();
  // From then on this process adopts their orphans.
  const Deadline term = agent_.open() ? Deadline::after(kOrphanGrace) : Deadline::after(std::chrono::seconds(0));
  const OrphanCount left =
      end_orphans(ranks, term, Deadline::after(last ? kLastOrphanLimit : kOrphanLimit), beat_if_due);
  if (left.ended > 0) tell(fmt::format("ended {} processes that ranks left behind", left.ended));
  if (left.remaining > 0) {
    base::write_stderr_line(fmt::format(
        "ddprun: {}: {} processes that ranks left behind did not end even after SIGKILL", job_.host, left.remaining));
  }
  finish_logs();
  workers_.reset();
  if (pmix_) {
    pmix_->modex().answer_all(PMIX_ERR_UNREACH);
    if (unclean_ || left.ended + left.remaining > 0 || pmix_->pulse().silent_since()) pmix_->abandon();
  }
  witness_.reset();
  if (store_) {
    print_refusals();
    loop_.forget(store_->refusals_fd());
  }
  store_.reset();
  const bool orphaned = !agent_.open();
  if (!orphaned) {
    agent_.send(control::AttemptCleaned{.epoch = plan_.epoch, .store_refusals = store_refusals_});
    agent_.close(Deadline::after(kFarewellLimit));
  }
  name_space_.reset();
  pmix_.reset();
  change_.reset();
  if (!orphaned) return;  // an agent is left to remove them
  remove_scratch(job_.scratch);
  if (!job_.memory.empty()) remove_scratch(job_.memory);
}

/// Waits for slow consoles within the drain time, which the agent may shorten meanwhile. Gives up a console that takes
/// nothing for the stall limit, or that has stalled for longer than the time left.
void Attempt::finish_logs() {
  if (!logs_) return;
  std::chrono::milliseconds known = drain_time_;
  Deadline end = Deadline::after(known);
  logs_->finish([&] {
    read_drain_time();
    if (heartbeat_.take_beat()) agent_.beat();
    if (std::exchange(known, drain_time_) != drain_time_) end = Deadline::after(drain_time_);
    return std::min<std::chrono::milliseconds>(control::kStallLimit, end.remaining());
  });
}

}  // namespace ddp::launcher
