#include "task_side/task_side.hpp"

#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/binding.hpp>
#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/imitated_launchers.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "base/torchrun_environment.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::srun_plugin {
namespace {

// Time for Slurm to fork a node's tasks one after the other.
constexpr std::chrono::seconds kOffersLimit{10};
// Exit code of a task whose program must not start: that of ddp-info doctor.
constexpr int kMustNotStart = 2;

base::Environment task_environment(spank_t spank) {
  std::map<std::string, std::string, std::less<>> variables;
  char** lines = nullptr;
  if (spank_get_item(spank, S_JOB_ENV, &lines) == ESPANK_SUCCESS && lines != nullptr) {
    for (; *lines != nullptr; ++lines) {
      const std::string_view text{*lines};
      const auto equals = text.find('=');
      if (equals != std::string_view::npos) variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return base::Environment{std::move(variables)};
}

/// Throws Error(unavailable): a guess would give tasks wrong ranks.
std::uint32_t step_fact(spank_t spank, spank_item_t item, const char* name) {
  std::uint32_t value = 0;
  const spank_err_t error = spank_get_item(spank, item, &value);
  if (error == ESPANK_SUCCESS) return value;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("asking Slurm for {}", name),
               .cause = fmt::format("spank_get_item failed [{}]", static_cast<int>(error))}};
}

std::uint32_t local_tasks(spank_t spank) { return step_fact(spank, S_JOB_LOCAL_TASK_COUNT, "S_JOB_LOCAL_TASK_COUNT"); }

std::optional<std::string> ticket_text(spank_t spank) {
  char text[512];
  if (spank_getenv(spank, kTicketVariable, text, sizeof text) != ESPANK_SUCCESS) return std::nullopt;
  return text;
}

BeforeProgram before_program(spank_t spank) {
  std::vector<char> text(PATH_MAX + 16);
  if (spank_getenv(spank, kBeforeVariable, text.data(), static_cast<int>(text.size())) != ESPANK_SUCCESS) return {};
  return parse_before(text.data());
}

/// The name of the task's program; empty if Slurm does not provide it.
std::string program_name(spank_t spank) {
  int count = 0;
  char** words = nullptr;
  if (spank_get_item(spank, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS || count < 1 || words == nullptr) return {};
  return words[0];
}

bool of_user_step(spank_t spank) { return base::is_user_step(step_fact(spank, S_JOB_STEPID, "S_JOB_STEPID")); }

/// Slurm signals programs, but not tasks still in preparation: these would start and run until KillWait is over.
[[noreturn]] void end_task() {
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  ::signal(SIGTERM, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &termination, nullptr);
  ::raise(SIGTERM);
  ::_exit(128 + SIGTERM);
}

/// Sets variables of the task, and records which.
class TaskVariables {
 public:
  explicit TaskVariables(spank_t spank) : spank_(spank) {}

  void set(const std::string& name, const std::string& value) {
    if (spank_setenv(spank_, name.c_str(), value.c_str(), 1) == ESPANK_SUCCESS)
      set_.push_back({.name = name, .digest = base::value_digest(value)});
  }
  /// Records the settings for launchers inside the task. @param cpus of the task before it was bound.
  void record(const TaskFacts& facts, const std::string& cpus) {
    const base::StepSettings settings{.step = facts.step, .cpus = cpus, .variables = set_};
    spank_setenv(spank_, base::kStepSettingsVariable, encode(settings).c_str(), 1);
  }

 private:
  spank_t spank_;
  std::vector<base::StepVariable> set_;
};

void imitate_launchers(TaskVariables& variables, const base::TorchrunEnvironment& worker, const TaskFacts& facts,
                       const PluginOptions& options, const base::Environment& environment) {
  base::ImitatedVariables all;
  if (options.imitates_openmpi) all = base::openmpi_variables(worker);
  if (options.imitates_horovod) {
    const std::vector<int> tasks = base::read_tasks_per_node(environment.raw("SLURM_STEP_TASKS_PER_NODE").value_or(""));
    const bool known = static_cast<int>(tasks.size()) == facts.num_nodes;  // else of one component of several
    const base::Crossing crossing = known ? base::crossing_of(tasks, facts.node_rank, facts.local_rank)
                                          : base::Crossing{.rank = facts.node_rank, .size = facts.num_nodes};
    const base::ImitatedVariables more = base::horovod_variables(worker, crossing, facts.node_name);
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const auto& [name, value] : all) variables.set(name, value);
}

/// The environment that torchrun would give the task, and the backend.
void set_identity(TaskVariables& variables, const TaskFacts& facts, const StepTicket& ticket, const NodeAnswer& answer,
                  const base::Environment& environment) {
  const base::TorchrunEnvironment worker{.rank = facts.rank,
                                         .world_size = facts.world_size,
                                         .local_rank = facts.local_rank,
                                         .local_world_size = facts.local_world_size,
                                         .node_rank = facts.node_rank,
                                         .num_nodes = facts.num_nodes,
                                         .role_rank = facts.rank,
                                         .role_world_size = facts.world_size,
                                         // without a store, the user's MASTER_ADDR stays for rank 0 to serve
                                         .master_address = answer.meeting.store_address,
                                         .master_port = answer.meeting.store_port,
                                         .agent_serves_store = answer.meeting.store_port != 0,
                                         .run_id = facts.step,
                                         .slurm_job = environment.raw("SLURM_JOB_ID").value_or("")};
  for (const base::TorchrunVariable& variable : worker.variables()) {
    if (!variable.default_only || !environment.has(variable.name)) variables.set(variable.name, variable.value);
  }
  if (ticket.options.backend != "auto") variables.set("DDP_BACKEND", ticket.options.backend);
  if (!ticket.options.as.empty()) variables.set("DDP_AS", ticket.options.as);
  imitate_launchers(variables, worker, facts, ticket.options, environment);
}

void apply_plan(TaskVariables& variables, const TaskFacts& facts, const TaskPlan& plan, bool wants_binding) {
  bool bound = !wants_binding;
  if (!plan.cpus.empty()) {
    try {
      const Binding binding{.cpus = CpuSet::parse(plan.cpus), .preferred_memory = plan.preferred_memory};
      for (const std::string& remark : binding.apply()) warn(facts, remark);
      bound = true;
    } catch (const Error& error) {
      warn(facts, error.what());
    }
  }
  for (const auto& [name, value] : plan.settings) variables.set(name, value);
  if (bound) variables.set("DDP_BIND", "none");  // a libddp program need not bind again
}

/// Runs what --ddp options request before the program starts. @return whether it may start. Each node warns once of
/// failures.
template <class Program>
bool tried_before(const std::string& ddp_step, const BeforeProgram& before, const TaskFacts& facts, bool store,
                  Program program) {
  if (!before.wanted()) return true;
  try {
    if (store) {
      const auto [name, environment] = program();
      return run_before(ddp_step, before, name, environment);
    }
    if (facts.local_rank == 0) warn(facts, "--ddp-doctor and --ddp-dump need the step's store: nothing is examined");
  } catch (const std::exception& error) {
    if (facts.local_rank == 0) warn(facts, error.what());
  }
  return true;
}

}  // namespace

void TaskSide::before_fork(spank_t spank) {
  if (!ticket_text(spank)) return;
  std::uint32_t tasks = 0;
  // Otherwise each task reports the error itself.
  if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS) return;
  board_ = std::make_unique<NoticeBoard>(tasks);
  ends_ = std::make_unique<EndChannel>(tasks);
}

void TaskSide::task_ended(spank_t spank) noexcept {
  if (ends_ == nullptr) return;
  TaskEnd end;
  int status = 0;
  if (spank_get_item(spank, S_TASK_GLOBAL_ID, &end.task) != ESPANK_SUCCESS) return;
  if (spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS) return;
  end.status = status;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  end.when_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  ends_->tell(end);
}

void TaskSide::prepare_task(spank_t spank) {
  const auto text = ticket_text(spank);
  if (!text) return;
  spank_unsetenv(spank, kTicketVariable);
  const BeforeProgram before = before_program(spank);
  spank_unsetenv(spank, kBeforeVariable);
  for (const char* name : {"DDP_METRICS_PORT", "DDP_METRICS_ADDRESS"}) spank_unsetenv(spank, name);  // as ddprun does
  if (!of_user_step(spank)) return;
  try {
    prepare(spank, *text, before);
  } catch (const std::exception& error) {
    const base::Environment environment = task_environment(spank);
    // A flaw in the ticket concerns all tasks of the node.
    const auto* const known = dynamic_cast<const Error*>(&error);
    if (known != nullptr && known->code() == ErrorCode::protocol && environment.raw("SLURM_LOCALID") != "0") return;
    base::write_stderr_line(fmt::format("ddp: warning: rank {} on {}: it starts without --ddp: {}",
                                        environment.raw("SLURM_PROCID").value_or("?"),
                                        environment.raw("SLURMD_NODENAME").value_or("this node"), error.what()));
  }
}

NodeAnswer TaskSide::node_answer(spank_t spank, const StepTicket& ticket, const TaskFacts& facts,
                                 const base::Environment& environment) {
  std::uint32_t task = 0;
  const bool knows_task = spank_get_item(spank, S_TASK_GLOBAL_ID, &task) == ESPANK_SUCCESS;
  const NodeAsker asker{.helper = ddp_step_,
                        .command = program_name(spank),
                        .first_rank = knows_task ? facts.rank - static_cast<int>(task) : 0,
                        .ends = board_ != nullptr && ends_ != nullptr ? ends_->witness_end() : -1};
  const auto own_resources = [&] { return encode(topology::resources_of_process(environment)); };
  if (board_ == nullptr) {
    // Unless it is alone, each task asks about the network only.
    const bool alone = facts.local_world_size == 1;
    return ask_node(asker, ticket, facts, environment,
                    [&] { return alone ? std::vector<Bytes>{own_resources()} : std::vector<Bytes>{}; });
  }
  board_->offer(static_cast<std::uint32_t>(facts.local_rank), own_resources());
  if (facts.local_rank == 0) {
    NodeAnswer answer = ask_node(asker, ticket, facts, environment, [&] {
      if (auto offers = board_->offers(Deadline::after(kOffersLimit))) return *std::move(offers);
      warn(facts, "tasks of this node are not bound to cores: some did not start in time");
      return std::vector<Bytes>{};
    });
    board_->answer(base::encode(answer));
    return answer;
  }
  if (const auto bytes = board_->wait_answer(Deadline::after(kOffersLimit + answer_limit(ticket)));
      bytes && !bytes->empty())
    return base::decode<NodeAnswer>(*bytes);
  warn(facts, "the first task of this node did not answer in time; this one is not bound to cores and knows no store");
  return {};
}

void TaskSide::prepare(spank_t spank, const std::string& ticket_text, const BeforeProgram& before) {
  const StepTicket ticket = parse_ticket(ticket_text);
  const base::Environment environment = task_environment(spank);
  const TaskFacts facts = read_task_facts(environment, local_tasks(spank));
  if (!ticket.pmi_available && facts.rank == 0) {
    warn(facts,
         "this Slurm has no PMI for this step (PMIx, or PMI-2 for components of a heterogeneous job); ranks can "
         "rendezvous only at the store");
  }
  if (ticket.version != DDP_VERSION_STRING && facts.local_rank == 0) {
    warn(facts, fmt::format("libddp's plugin here is of version {}, that of srun's host of {}; install one on all",
                            DDP_VERSION_STRING, ticket.version));
  }
  if (board_ != nullptr && board_->tasks() != static_cast<std::uint32_t>(facts.local_world_size)) board_.reset();
  if (board_ == nullptr && facts.local_world_size > 1 && facts.local_rank == 0) {
    // Slurm forked the tasks from a process other than the board's (job_container of 24.05 and newer).
    warn(facts,
         "tasks of this node are not bound to cores and get no settings but the network interface's: with "
         "job_container, Slurm prepares each in a process of its own, where they cannot divide the node");
  }
  const NodeAnswer answer = node_answer(spank, ticket, facts, environment);
  if (!answer.meeting.refusal.empty()) ::_exit(kMustNotStart);
  if (answer.meeting.step_ends) end_task();
  TaskVariables variables(spank);
  set_identity(variables, facts, ticket, answer, environment);
  const bool wants_binding = ticket.options.bind != BindPolicy::none;
  const std::string cpus_before = topology::affinity_of(0).to_string();
  // A single plan suits each task.
  const std::size_t index = answer.tasks.size() == 1 ? 0 : static_cast<std::size_t>(facts.local_rank);
  std::string summary = "not placed";
  if (index < answer.tasks.size()) {
    apply_plan(variables, facts, answer.tasks[index], wants_binding);
    summary = answer.tasks[index].summary + (wants_binding ? "" : ", not bound");
  }
  variables.record(facts, wants_binding ? cpus_before : std::string());
  const bool has_store = answer.meeting.store_port != 0;
  const bool may_start = tried_before(ddp_step_, before, facts, has_store, [&] {
    return std::pair{program_name(spank), task_environment(spank)};
  });
  if (!may_start) ::_exit(kMustNotStart);
  if (ends_ != nullptr) ends_->tell(TaskStart{.rank = static_cast<std::uint32_t>(facts.rank), .pid = ::getpid()});
  if (!ticket.options.verbose) return;
  base::write_stderr_line(fmt::format(
      "ddp: rank {} of {} on {} (local rank {} of {}): {}; store {}; {}", facts.rank, facts.world_size, facts.node_name,
      facts.local_rank, facts.local_world_size, summary,
      has_store ? fmt::format("{} port {}", answer.meeting.store_address, answer.meeting.store_port) : "none",
      environment.has("PMIX_NAMESPACE") ? "PMIx"
      : environment.has("PMI_FD")       ? "PMI-2"
                                        : "no PMI"));
  if (facts.local_rank != 0) return;
  for (const std::string& remark : answer.remarks) {
    base::write_stderr_line(fmt::format("ddp: {}: {}", facts.node_name, remark));
  }
}

}  // namespace ddp::srun_plugin
