#include "step_program/step_coordinator.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <random>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "control/handshake.hpp"
#include "diagnostics/hang/rank_facts.hpp"
#include "outcome/group_verdict.hpp"
#include "placement/network_choice.hpp"
#include "report/failure_report.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp::srun_plugin {
namespace {

namespace control = launcher::control;
using launcher::Moment;

// A step that ended sooner was never launched, or missed nothing.
constexpr std::chrono::seconds kLaunch{2};
// From the first failure to its line: a later report may name its cause (Supervisor).
constexpr std::chrono::milliseconds kNewsLimit{260};
// Time for rank 0's node to serve the ranks' store.
constexpr std::chrono::seconds kStoreLimit{3};
// Time for nodes to look for a second, and for busy nodes to answer.
constexpr std::chrono::seconds kLookLimit{10};
constexpr std::chrono::seconds kAnswerReserve{2};
constexpr int kMostRanks = 1 << 24;
// Turns of the loop after srun has ended, for what nodes have already sent.
constexpr int kLastTurns = 16;
// Most failed ranks whose last words are looked for.
constexpr std::size_t kMostTraces = 16;
constexpr const char* kEachRoutes = "each node uses the interface that routes to the others";

/// "n0, n1 and 3 more": a large step has more names than anyone reads.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t shown = std::min(names.size(), kMostNamed);
  const std::string text =
      fmt::to_string(fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() == shown ? text : fmt::format("{} and {} more", text, names.size() - shown);
}

void say(const std::string& text) { base::write_stderr_line("srun --ddp: " + text); }

/// "failed with exit code 1", "was ended by SIGKILL (9)".
std::string describe(const launcher::RankEnd& end) {
  if (!end.by_signal) return fmt::format("failed with exit code {}", end.code);
  const char* const name = ::sigabbrev_np(end.code);
  return fmt::format("was ended by {}{}",
                     name != nullptr ? fmt::format("SIG{} ({})", name, end.code) : fmt::format("signal {}", end.code),
                     end.core_dumped ? ", core dumped" : "");
}

bool ended_by(const launcher::RankFailure& failure, int signal) {
  return failure.end && failure.end->by_signal && failure.end->code == signal;
}

/// Whether Slurm may have ended the rank, as it ends what is left of a step.
bool may_be_slurms(const launcher::RankEnd& end) {
  return end.by_signal && (end.code == SIGTERM || end.code == SIGKILL);
}

std::unique_ptr<control::Listener> listen(const std::optional<stream::PortRange>& ports, const stream::Secret& secret) {
  if (!ports) return std::make_unique<control::Listener>("", std::uint16_t{0}, secret);
  const unsigned count = ports->last - ports->first + 1U;
  const unsigned begin = std::random_device{}() % count;
  for (unsigned i = 0;; ++i) {
    try {
      return std::make_unique<control::Listener>("", static_cast<std::uint16_t>(ports->first + (begin + i) % count),
                                                 secret);
    } catch (const Error& error) {
      if (error.native() != base::errno_name(EADDRINUSE) || i + 1 == count) throw;
    }
  }
}

}  // namespace

StepCoordinator::StepCoordinator(StepCoordinatorOptions options, const stream::Secret& secret, stream::EventLoop& loop)
    : options_(std::move(options)),
      links_(
          loop, {}, [this](int link, const control::Message& message) { handle(link, message); },
          [this](int link, const launcher::AgentLinks::Loss& loss) { lost(link, loss); }),
      launched_(Deadline::after(kLaunch)),
      loop_(loop),
      hang_(options_.hang_report_after),
      output_(STDERR_FILENO) {
  auto listener = listen(options_.ports, secret);
  port_ = listener->port();
  links_.listen(std::move(listener));
  if (options_.event_log.empty()) return;
  try {
    log_.emplace("--ddp-event-log", options_.event_log,
                 launcher::EventLog::Job{.run_id = options_.step.empty() ? "none" : options_.step,
                                         .slurm_job_id = options_.job,
                                         .program = options_.program,
                                         .max_restarts = 0},
                 [](const std::string& text) { base::write_stderr_line("srun: ddp: warning: " + text); });
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("srun: ddp: warning: {}; the step has no event log", error.what()));
  }
}

// ---- what nodes say ----------------

void StepCoordinator::handle(int link, const control::Message& message) {
  if (const auto* hello = std::get_if<control::Hello>(&message)) {
    links_.set_peer(link, fmt::format("ddp-step on {}", hello->host));
    nodes_.try_emplace(link, Node{.host = hello->host,
                                  .number = static_cast<int>(nodes_.size()),
                                  .refuses = hello->nproc == 0,
                                  .addresses = hello->addresses,
                                  .interfaces = hello->interfaces});
    return;
  }
  const auto found = nodes_.find(link);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  if (const auto* tasks = std::get_if<control::StepTasks>(&message)) {
    handle_tasks(link, node, *tasks);
  } else if (const auto* prepared = std::get_if<control::AttemptPrepared>(&message)) {
    if (link == store_link_ && !start_)
      start({.store_addresses = node.addresses, .store_port = prepared->store_port, .store_key = prepared->store_key});
  } else if (const auto* failed = std::get_if<control::AttemptFailed>(&message)) {
    if (link != store_link_ || start_) return;
    base::write_stderr_line(fmt::format("srun: ddp: warning: {}: {}", node.host, failed->message));
    serve_store();
  } else if (const auto* started = std::get_if<control::RanksStarted>(&message)) {
    handle_started(node, *started);
  } else if (const auto* ended = std::get_if<control::RankEnded>(&message)) {
    handle_ended(link, node, *ended);
  } else if (const auto* still = std::get_if<control::RanksStill>(&message)) {
    hang_.note(node.number, still->still, Deadline::Clock::now());
  } else if (const auto* observed = std::get_if<control::RanksObserved>(&message)) {
    handle_observed(node, *observed);
  } else if (const auto* progress = std::get_if<control::Progress>(&message)) {
    const auto facts = progress_.add(node.number, std::max(expected_.size(), nodes_.size()), 0, progress->ranks);
    if (facts && log_) log_->progress(0, *facts);
  } else if (std::get_if<control::SignalReceived>(&message) != nullptr) {
    end_step();
  } else if (const auto* output = std::get_if<control::ConsoleOutput>(&message)) {
    for (const control::ConsolePiece& piece : output->pieces)
      base::write_stderr_line(std::string_view{piece.text}.substr(0, piece.text.find_last_not_of('\n') + 1));
  }
}

void StepCoordinator::handle_tasks(int link, Node& node, const control::StepTasks& tasks) {
  if (!supervisor_) {
    world_size_ = std::min(tasks.world_size, kMostRanks);
    try {
      expected_ = topology::expand_hostlist(tasks.node_list);
    } catch (const Error&) {
      expected_ = {node.host};
    }
    std::sort(expected_.begin(), expected_.end());  // components of a heterogeneous step may share a node
    expected_.erase(std::unique(expected_.begin(), expected_.end()), expected_.end());
    std::vector<launcher::RankName> names;
    for (int rank = 0; rank < world_size_; ++rank) names.push_back({.rank = rank, .local_rank = 0, .pid = 0});
    supervisor_.emplace(std::move(names), launcher::SupervisionLimits{}, launcher::SignalMeaning{});
    patience_end_ = Deadline::after(options_.patience);
  }
  for (const std::int64_t rank : tasks.ranks) {
    if (rank < 0 || rank >= world_size_) continue;
    supervisor_->rank_placed({.rank = static_cast<int>(rank),
                              .local_rank = static_cast<int>(node.ranks.size()),
                              .pid = 0,
                              .host = node.host});
    node.ranks.push_back(static_cast<int>(rank));
  }
  const std::size_t joined = expected_.size() - missing_nodes().size();
  if (log_) log_->node_joined(static_cast<int>(joined), static_cast<int>(expected_.size()));
  if (step_ends_) {
    links_.send(link, control::Finish{.exit_status = 128 + SIGTERM});
  } else if (decided_) {
    tell_plan(link, node);
    if (start_) links_.send(link, *start_);
  } else if (joined == expected_.size() && !any_refuses()) {
    decide();
  }
}

void StepCoordinator::handle_started(Node& node, const control::RanksStarted& message) {
  node.started = true;
  for (std::size_t local = 0; local < std::min(node.ranks.size(), message.pids.size()); ++local)
    supervisor_->rank_started(node.ranks[local], static_cast<pid_t>(message.pids[local]));
  std::size_t started = 0;
  for (const auto& [link, each] : nodes_) started += each.started ? each.ranks.size() : 0;
  if (log_ && started == static_cast<std::size_t>(world_size_))
    log_->attempt_started(0, world_size_, static_cast<int>(expected_.size()));
}

void StepCoordinator::handle_ended(int link, Node& node, const control::RankEnded& message) {
  links_.send(link, control::RankEndNoted{.local_rank = message.local_rank});
  if (static_cast<std::size_t>(message.local_rank) >= node.ranks.size()) return;
  const int rank = node.ranks[static_cast<std::size_t>(message.local_rank)];
  const launcher::RankEnd& end = message.end;
  if (log_) log_->rank_ended(0, rank, node.host, end);
  const Moment now = Moment::now();
  const bool failed_before = !supervisor_->outcome().failures.empty();
  if (failed_before && options_.failure_ends_step && may_be_slurms(end)) supervisor_->ranks_signalled(end.code, now);
  supervisor_->rank_ended(rank, end, {}, now);
  if (!failed_before && !supervisor_->outcome().failures.empty()) failure_due_ = Deadline::after(kNewsLimit);
  if (++node.ended < node.ranks.size()) return;
  hang_.note(node.number, false, now.steady);
  hang_.give_up(node.number);
}

void StepCoordinator::handle_observed(const Node& node, const control::RanksObserved& message) {
  diagnostics::HostFacts facts{.host = node.host};
  try {
    facts = diagnostics::decode_host_facts(message.facts);
  } catch (const Error& error) {
    facts.notes.emplace_back(error.what());
  }
  hang_.answer(node.number, std::move(facts));
}

void StepCoordinator::lost(int link, const launcher::AgentLinks::Loss& loss) {
  const auto found = nodes_.find(link);
  if (found == nodes_.end()) return;
  Node& node = found->second;
  node.gone = true;
  hang_.give_up(node.number);
  if (loss.silent && node.ended < node.ranks.size()) {
    silent_.push_back(node.host);
    say(fmt::format("{}; nothing more is known of its ranks", loss.why));
    if (log_) {
      log_->node_lost(0, {.host = node.host,
                          .node_rank = node.number,
                          .num_ranks = static_cast<int>(node.ranks.size()),
                          .message = loss.why,
                          .exit_status = 1,
                          .time = std::chrono::system_clock::now()});
    }
  }
  if (link == store_link_ && !start_) serve_store();
}

// ---- what nodes agree on ----------------

std::vector<std::string> StepCoordinator::missing_nodes() const {
  std::vector<std::string> missing = expected_;
  for (const auto& [link, node] : nodes_) std::erase(missing, node.host);
  return missing;
}

bool StepCoordinator::any_refuses() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& each) { return each.second.refuses; });
}

void StepCoordinator::decide() {
  decided_ = true;
  patience_end_.reset();
  if (const auto missing = missing_nodes(); !missing.empty()) {
    undecided_because_ =
        fmt::format("{} did not take part within {:g} s (is the plugin with its ddp-step installed there?)",
                    listed(missing), std::chrono::duration<double>(options_.patience).count());
    base::write_stderr_line(fmt::format("ddp: warning: the nodes of this step do not agree on a network: {}; {}",
                                        undecided_because_, kEachRoutes));
  } else {
    choose_network();
  }
  for (const auto& [link, node] : nodes_) {
    if (std::find(node.ranks.begin(), node.ranks.end(), 0) == node.ranks.end() || node.gone) continue;
    if (!node.addresses.empty()) store_link_ = link;
  }
  for (const auto& [link, node] : nodes_) tell_plan(link, node);
  if (!store_link_) return serve_store();
  store_due_ = Deadline::after(kStoreLimit);
}

void StepCoordinator::choose_network() {
  std::vector<std::string> hosts;
  std::vector<launcher::NodeNetwork> networks;
  for (const auto& [link, node] : nodes_) {
    // A node without candidates has said why, and takes no part.
    if (node.interfaces.empty() || std::find(hosts.begin(), hosts.end(), node.host) != hosts.end()) continue;
    hosts.push_back(node.host);
    networks.push_back(launcher::network_of(node.interfaces));
  }
  if (networks.empty()) return;
  const std::vector<topology::SocketInterface> choices = launcher::choose_interfaces(networks);
  for (std::size_t i = 0; i < hosts.size(); ++i) interfaces_[hosts[i]] = choices[i];
}

void StepCoordinator::tell_plan(int link, const Node& node) {
  const auto found = interfaces_.find(node.host);
  control::NodeLayout layout{.host = node.host, .nproc = static_cast<int>(node.ranks.size())};
  layout.socket_interface = found != interfaces_.end() ? found->second.name : "";
  layout.socket_reason = found != interfaces_.end() ? found->second.reason : undecided_because_;
  links_.send(link, control::PrepareAttempt{
                        .serve_store = link == store_link_,
                        .run_id = options_.step,
                        .still_after_ms = options_.hang_report_after.value_or(std::chrono::milliseconds{0}).count(),
                        .nodes = {std::move(layout)}});
}

/// Serves the store here: srun is on the host of rank 0, or that node is silent.
void StepCoordinator::serve_store() {
  store_due_.reset();
  try {
    const auto key = store_server::StoreKey::make();
    server_ = std::make_unique<store_server::StoreServer>(
        store_server::StoreServerOptions{.key = key, .port_range = options_.ports});
    loop_.watch(server_->refusals_fd(), [this] {
      for (const std::string& line : server_->take_refusals())
        base::write_stderr_line(fmt::format("srun: ddp: warning: the step's store {}", line), base::kLinePatience,
                                STDIN_FILENO);
    });
    start({.store_port = server_->port(), .store_key = key.text()});
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("srun: ddp: warning: {}; the step has no store", error.what()));
    start({});
  }
}

void StepCoordinator::start(control::StartAttempt start) {
  store_due_.reset();
  if (step_ends_) return;
  start_ = std::move(start);
  links_.send_to_all(*start_);
}

/// Slurm ends the step, which tasks that wait for other nodes would not notice.
void StepCoordinator::end_step() {
  if (start_ || std::exchange(step_ends_, true)) return;
  patience_end_.reset();
  store_due_.reset();
  links_.send_to_all(control::Finish{.exit_status = 128 + SIGTERM});
}

// ---- while it runs ----------------

std::optional<Deadline> StepCoordinator::next_deadline() const {
  std::optional<Deadline> next = links_.next_deadline();
  for (const auto& other : {patience_end_, store_due_, failure_due_, hang_.next_look(), hang_.limit()}) {
    if (other) next = next ? earlier(*next, *other) : other;
  }
  return next;
}

void StepCoordinator::time_passed() {
  links_.time_passed();
  if (patience_end_ && patience_end_->expired()) {
    any_refuses() ? patience_end_.reset() : decide();
  }
  if (store_due_ && store_due_->expired()) serve_store();
  if (failure_due_ && failure_due_->expired()) say_failure();
  look_for_hang();
}

void StepCoordinator::look_for_hang() {
  const auto now = Deadline::Clock::now();
  if (hang_.may_be_due(now)) {
    std::set<int> running;
    for (const auto& [link, node] : nodes_) {
      if (node.started && !node.gone && node.ended < node.ranks.size()) running.insert(node.number);
    }
    if (hang_.is_due(running, now)) {
      hang_.ask(running, Deadline::after(kLookLimit + kAnswerReserve));
      links_.send_to_all(
          control::ObserveRanks{.limit_ms = static_cast<int>(std::chrono::milliseconds{kLookLimit}.count())});
    }
  }
  if (!hang_.complete(now)) return;
  auto report = hang_.conclude_standstill(now);
  if (!report) return;
  if (report->text.ends_with('\n')) report->text.pop_back();
  say(fmt::format("{}: {}", report->when, report->text));
}

// ---- the end ----------------

/// Reports at once, in one line: a step may continue long after a failure.
void StepCoordinator::say_failure() {
  failure_due_.reset();
  if (std::exchange(failure_said_, true)) return;
  const launcher::RankFailure& failure = supervisor_->outcome().failures.front();
  const std::string exception =
      failure.end->by_signal ? "" : output_.exception(static_cast<std::uint32_t>(failure.name.rank));
  say(fmt::format("rank {} on {} {}{}; {}{}", failure.name.rank, failure.name.host, describe(*failure.end),
                  exception.empty() ? "" : fmt::format(" ({})", exception),
                  options_.failure_ends_step ? "the step ends" : "the step continues, as --kill-on-bad-exit says",
                  ended_by(failure, SIGTERM) ? " (scancel, preemption and time limits send this signal to all)" : ""));
}

void StepCoordinator::end() {
  if (!supervisor_) {
    if (options_.nodes_expected && launched_.expired()) {
      say("no node of this step has reported: if its tasks were started, the plugin with its ddp-step is not loaded on "
          "the nodes (plugstack.conf), or they do not reach this host");
    }
  } else {
    outcome_ = supervisor_->outcome();
    report();
  }
  if (log_) {
    const auto total = std::chrono::steady_clock::now() - begin_;
    log_->job_ended(outcome_, 0, 0, std::chrono::duration_cast<std::chrono::milliseconds>(total),
                    supervisor_ && supervisor_->done());
  }
}

void StepCoordinator::report() {
  const std::vector<std::string> missing = missing_nodes();
  if (!missing.empty() && !decided_) {
    say(
        fmt::format("{} did not take part in this step (is the plugin with its ddp-step installed there, and of this "
                    "version? ddp-selftest --local says)",
                    listed(missing)));
  }
  outcome_.silent = silent_;
  outcome_.silent.insert(outcome_.silent.end(), missing.begin(), missing.end());
  std::vector<launcher::RankFailure>& failures = outcome_.failures;
  if (failures.empty()) return;
  const bool by_slurm =
      std::all_of(failures.begin(), failures.end(), [](const auto& failure) { return ended_by(failure, SIGTERM); });
  if (!missing.empty() && !decided_ && may_be_slurms(*failures.front().end)) return;  // the consequence
  say_failure();
  if (by_slurm) return outcome_.end_by(SIGTERM);
  for (std::size_t i = 0; i < std::min(failures.size(), kMostTraces); ++i)
    failures[i].traces = {.stderr_tail = output_.traceback(static_cast<std::uint32_t>(failures[i].name.rank)),
                          .stderr_shown = true};
  launcher::apply_group_verdict(outcome_);
  outcome_.hang = hang_.report_at_failure(Deadline::Clock::now());
  std::string text = launcher::format_failure_report(outcome_, {.program = options_.program,
                                                                .num_nodes = static_cast<int>(expected_.size()),
                                                                .world_size = world_size_,
                                                                .launcher = "srun --ddp",
                                                                .ended_by = "Slurm"});
  if (text.ends_with('\n')) text.pop_back();
  base::write_stderr_line(text);
}

int StepCoordinator::failure_status() const { return failure_said_ ? outcome_.exit_status() : 0; }

// ---- the process ----------------

namespace {

/// When srun runs in a batch script, Slurm signals all processes there, including this one, at scancel, preemption and
/// the time limit. Ranks that save their state then still need the store.
void ignore_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE})
    ::signal(signal, SIG_IGN);
}

/// Each rank has at least one connection. srun raises its own limit only when it launches tasks, after the coordinator
/// of a heterogeneous step has started.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Returns the line without its newline, or nothing if it does not come. Keeps secrets out of arguments and
/// environments.
std::optional<std::string> read_secret_line() {
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));  // it is written at once
  constexpr std::size_t kLongest = 256;
  std::string line;
  while (line.size() < kLongest && base::wait_for(STDIN_FILENO, POLLIN, deadline)) {
    char letter = 0;
    const ssize_t count = ::read(STDIN_FILENO, &letter, 1);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return std::nullopt;
    if (count < 0) continue;
    if (letter == '\n') return line;
    line += letter;
  }
  return std::nullopt;
}

bool input_has_ended() {
  std::array<char, 64> block{};
  const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
  return count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
}

}  // namespace

int coordinate_step(const StepCoordinatorOptions& options) {
  ignore_signals();
  raise_descriptor_limit();
  stream::EventLoop loop;
  std::optional<StepCoordinator> coordinator;
  try {
    const auto secret = read_secret_line();
    if (!secret) return 1;
    coordinator.emplace(options, stream::Secret::from_hex(*secret), loop);
  } catch (const std::exception& error) {
    base::write_line(STDOUT_FILENO, fmt::format("error {}", error.what()), base::kLinePatience);
    return 1;
  }
  base::write_line(STDOUT_FILENO, fmt::format("ddp-step 1 port {}", coordinator->port()), base::kLinePatience);
  // srun reads no further before the coordinator ends.
  const base::UniqueFd plugin{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (nothing) ::dup2(nothing.get(), STDOUT_FILENO);
  bool srun_ended = false;
  loop.watch(STDIN_FILENO, [&] { srun_ended = input_has_ended(); });
  while (!srun_ended) {
    loop.run_once(coordinator->next_deadline().value_or(Deadline::after(std::chrono::hours(1))));
    coordinator->time_passed();
  }
  loop.forget(STDIN_FILENO);
  for (int turn = 0; turn < kLastTurns; ++turn) loop.run_once(Deadline::after(std::chrono::milliseconds(0)));
  coordinator->end();
  if (const int status = coordinator->failure_status(); status != 0 && plugin)
    base::write_line(plugin.get(), fmt::format("failure {}", status), base::kLinePatience);
  return 0;
}

}  // namespace ddp::srun_plugin
