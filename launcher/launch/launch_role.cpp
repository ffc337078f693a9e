#include "launch/launch_role.hpp"

#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include <ddp/binding.hpp>
#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "base/torchrun_environment.hpp"
#include "kvs/pmi_store.hpp"
#include "options/host_list.hpp"
#include "outcome/exit_error.hpp"

namespace ddp::launcher {
namespace {

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw ExitError{kExitUsage,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = "finding the nodes of the job",
                   .cause = std::move(cause),
                   .hint = std::move(hint)}};
}

std::string range_text(const NodeRange& nodes) {
  return nodes.min == nodes.max ? fmt::format("{}", nodes.max) : fmt::format("{}:{}", nodes.min, nodes.max);
}

bool has_pmi(const base::Environment& environment) {
  return environment.has("PMIX_NAMESPACE") || kvs::pmi_version(environment) != 0;
}

/// Whether the PMI of this process is Slurm's, or Slurm alone started it: another engine's daemons may be a step's
/// tasks.
bool slurm_started(const base::SlurmStep& step, const base::Environment& environment) {
  if (!step.is_task() || !step.num_tasks) return false;
  if (const auto name = environment.raw("PMIX_NAMESPACE")) return *name == "slurm.pmix." + step.name;
  return kvs::pmi_version(environment) != 1;
}

/// The tasks that a launcher started, this process among them, and its words for them.
struct Tasks {
  std::string job;   ///< "this Slurm step"
  std::string here;  ///< empty: one task on each node; else how many: "2(x3),1"
  int count = 1;
  std::int64_t rank = -1;
  bool pmi = false;
  std::string more_nodes;  ///< how to start a task on each of several nodes
  std::string pmi_hint;
  std::string engine{};  ///< empty: Slurm
};

/// "2(x3),1" has several tasks per node.
bool one_task_per_node(const base::SlurmStep& step, int tasks) {
  return step.tasks_per_node.empty() || step.tasks_per_node == "1" ||
         step.tasks_per_node == fmt::format("1(x{})", tasks);
}

/// Which of @p have nodes run the job's ranks. @param what "the allocation has"
NodeRange nodes_among(const LaunchOptions& options, int have, const std::string& what, const std::string& noun) {
  const int most = have - options.spares;
  const std::string there = fmt::format("{} {} {}{}", what, have, noun, have == 1 ? "" : "s");
  if (options.spares > 0 && most < (options.nodes_given ? options.nodes.min : 1))
    reject(fmt::format("--spares={}{} was given, but {}", options.spares,
                       options.nodes_given ? fmt::format(" with --nnodes={}", range_text(options.nodes)) : "", there),
           "hold back fewer, or request more nodes");
  if (!options.nodes_given) return {.min = most, .max = most};
  if (options.nodes.min > most)
    reject(fmt::format("--nnodes={} was given, but {}", range_text(options.nodes), there),
           "leave out --nnodes to use all of them");
  return {.min = options.nodes.min, .max = std::min(options.nodes.max, most)};
}

bool names_rendezvous(const LaunchOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  return !rendezvous.endpoint_host.empty() || rendezvous.master_addr_given || rendezvous.node_rank.has_value();
}

Tasks tasks_of(const base::SlurmStep& step, const LaunchOptions& options, const base::Environment& environment) {
  const int count = step.num_tasks.value_or(1);
  return {
      .job = "this Slurm step",
      .here = one_task_per_node(step, count) ? "" : step.tasks_per_node,
      .count = count,
      .rank = step.rank.value_or(-1),
      .pmi = has_pmi(environment),
      .more_nodes = fmt::format("srun --nodes={} --ntasks-per-node=1 ddprun ...", options.nodes.max + options.spares),
      .pmi_hint =
          "start it with srun --mpi=pmix (or --mpi=pmi2), or call ddprun without srun: it starts its agents itself"};
}

Tasks tasks_of(const base::EngineTask& task, const base::Environment& environment) {
  return {.job = fmt::format("this job of {}", task.engine),
          .here = task.tasks_here.value_or(1) == 1 ? "" : fmt::format("{} here", *task.tasks_here),
          .count = task.tasks.value_or(1),
          .rank = task.rank.value_or(-1),
          .pmi = has_pmi(environment) && task.rank.has_value(),
          .more_nodes = "one task on each node, as with mpiexec -ppn 1, mpirun --map-by ppr:1:node or flux run -N",
          .pmi_hint = fmt::format("start it with {}", task.pmi_command),
          .engine = std::string(task.engine)};
}

RoleDecision decide_in_step(const LaunchOptions& options, const Tasks& step) {
  const int tasks = step.count;
  const NodeRange one{.min = 1, .max = 1};
  if (tasks == 1 || (options.nodes_given && options.nodes.max + options.spares == 1)) {
    if (options.spares > 0 || (options.nodes_given && options.nodes.min > 1)) {
      if (names_rendezvous(options))
        return {.role = LaunchRole::endpoint,
                .reason = "it is the only task, and the options name a rendezvous",
                .nodes = options.nodes,
                .spares = options.spares};
      reject(options.nodes_given
                 ? fmt::format("--nnodes={} was given, but {} has one task", range_text(options.nodes), step.job)
                 : fmt::format("--spares={} was given, but {} has one task", options.spares, step.job),
             "start ddprun on each node: " + step.more_nodes);
    }
    return {.role = LaunchRole::alone, .reason = "the task's ranks are all on this host", .nodes = one};
  }
  const int ranked = tasks - options.spares;
  const bool same_nodes = !options.nodes_given || (options.nodes.min <= ranked && ranked <= options.nodes.max);
  if (names_rendezvous(options) && (!step.pmi || !same_nodes))
    return {.role = LaunchRole::endpoint,
            .reason = "the options name a rendezvous",
            .nodes = options.nodes,
            .spares = options.spares};
  if (!step.here.empty()) {
    reject(
        fmt::format("{} has {} tasks, several on a node ({})", step.job, tasks, step.here),
        fmt::format("ddprun starts the ranks of a node itself: {} (or --standalone for a job of its own in each task)",
                    step.engine.empty() ? "srun --ntasks-per-node=1 ddprun --nproc-per-node=N ..."
                                        : step.more_nodes + ", with ddprun --nproc-per-node=N"));
  }
  const NodeRange nodes = nodes_among(options, tasks, step.job + " has", "node");
  if (!same_nodes) {
    reject(fmt::format("--nnodes={} was given, but {} has {} nodes", range_text(options.nodes), step.job, tasks),
           "leave out --nnodes, or start as many tasks");
  }
  if (!step.pmi)
    reject(fmt::format("{} has {} tasks but no PMI, so its agents cannot find each other", step.job, tasks),
           step.pmi_hint);
  return {.role = LaunchRole::step_agent,
          .reason = fmt::format("{} has a task on each of {} nodes", step.job, tasks),
          .nodes = nodes,
          .spares = options.spares,
          .task = step.rank,
          .engine = step.engine};
}

/// Whether this allocation is heterogeneous; one made inside a task of a heterogeneous job inherits its variables.
bool is_heterogeneous(const base::Environment& environment) {
  return environment.number("SLURM_HET_SIZE").value_or(1) > 1 &&
         environment.raw("SLURM_JOB_ID_HET_GROUP_0") == environment.raw("SLURM_JOB_ID");
}

}  // namespace

std::vector<int> allocated_nodes(const base::Environment& environment) {
  const int components = environment.number("SLURM_HET_SIZE").value_or(1);
  if (!is_heterogeneous(environment)) return {environment.number("SLURM_JOB_NUM_NODES").value_or(1)};
  std::vector<int> nodes;
  for (int i = 0; i < components; ++i) {
    const std::string name = fmt::format("SLURM_JOB_NUM_NODES_HET_GROUP_{}", i);
    const auto number = environment.number(name);
    if (!number) {
      reject(
          fmt::format("the allocation has {} components, but {} is not set", components, name),
          "name the nodes with --nnodes and --rdzv-endpoint, or start ddprun in a step: srun --het-group=... ddprun");
    }
    nodes.push_back(*number);
  }
  return nodes;
}

namespace {

/// The first @p wanted nodes.
std::vector<int> take_nodes(std::vector<int> components, int wanted) {
  for (int& nodes : components) {
    nodes = std::min(nodes, wanted);
    wanted -= nodes;
  }
  return components;
}

/// Empty: the allocation does not matter.
std::optional<RoleDecision> decide_in_allocation(const LaunchOptions& options, const base::Environment& environment,
                                                 const base::SlurmStep& step) {
  // A shell of a heterogeneous salloc only has the components' numbers of nodes.
  const bool allocation = environment.has("SLURM_JOB_NUM_NODES") || is_heterogeneous(environment);
  if (!environment.has("SLURM_JOB_ID") || !allocation) return std::nullopt;
  if (base::is_torchrun_worker(environment)) return std::nullopt;
  if (step.kind == base::SlurmStep::Kind::user) return std::nullopt;  // a child of a task has only its node
  const std::vector<int> components = allocated_nodes(environment);
  const int have = std::accumulate(components.begin(), components.end(), 0);
  NodeRange nodes = nodes_among(options, have, "the allocation has", "node");
  const int here = nodes.max;
  if (options.nodes_given && options.nodes.min < options.nodes.max) nodes.max = options.nodes.max;
  // slurmd sets it for processes on the allocation's nodes; a shell of salloc may run elsewhere.
  if (nodes.max == 1 && options.spares == 0 && !step.node_name.empty())
    return RoleDecision{.role = LaunchRole::alone,
                        .reason = "one node was requested, and this one is in the allocation",
                        .nodes = nodes};
  return RoleDecision{
      .role = LaunchRole::frontend,
      .reason = fmt::format("Slurm job {} has {} nodes", environment.raw("SLURM_JOB_ID").value_or(""), have),
      .nodes = nodes,
      .spares = options.spares,
      .absent = nodes.max - here,
      .expands = options.expands(),
      .components = take_nodes(components, here + options.spares)};
}

RoleDecision decide_by_hosts(const LaunchOptions& options, const base::SlurmStep& step) {
  if (step.is_task() && step.num_tasks.value_or(1) > 1)
    reject(
        fmt::format("this Slurm step has {} tasks, and each would start the ranks of the host list", *step.num_tasks),
        "leave out the host list, or call ddprun without srun");
  const int have = static_cast<int>(options.hosts.size());
  const NodeRange nodes = nodes_among(options, have, "the host list has", "host");
  return {.role = LaunchRole::frontend,
          .reason = fmt::format("the host list has {} host{}", have, have == 1 ? "" : "s"),
          .nodes = nodes,
          .spares = options.spares,
          .by_hosts = true};
}

}  // namespace

RoleDecision decide_role(const LaunchOptions& options, const base::Environment& environment,
                         const std::optional<base::EngineTask>& task) {
  const NodeRange one{.min = 1, .max = 1};
  if (environment.has(kAgentVariable)) {
    const bool by_hosts = environment.has(kAgentHostVariable);
    return {.role = LaunchRole::frontend_agent,
            .reason = by_hosts ? "ddprun started this agent by its host list" : "ddprun started this agent with srun",
            .nodes = options.nodes,
            .expands = options.expands(),
            .by_hosts = by_hosts};
  }
  if (options.standalone) return {.role = LaunchRole::alone, .reason = "--standalone was given", .nodes = one};
  const auto step = base::SlurmStep::read(environment);
  if (!options.hosts.empty()) return decide_by_hosts(options, step);
  const bool in_step = step.is_task() && step.num_tasks && !base::is_torchrun_worker(environment);
  if (task && !slurm_started(step, environment) && (has_pmi(environment) || !in_step)) {
    if (!task->tasks || !task->rank)
      reject(fmt::format("{} does not say which of how many tasks this is", task->engine),
             "keep its variables (Hydra: without -pmi-port), or give --standalone for a job in each task");
    return decide_in_step(options, tasks_of(*task, environment));
  }
  if (in_step) return decide_in_step(options, tasks_of(step, options, environment));
  const bool several = options.nodes.max + options.spares > 1;
  if (several && names_rendezvous(options))
    return {.role = LaunchRole::endpoint,
            .reason = "the options name a rendezvous",
            .nodes = options.nodes,
            .spares = options.spares};
  if (const auto decision = decide_in_allocation(options, environment, step)) return *decision;
  if (several) {
    return {.role = LaunchRole::endpoint,
            .reason = fmt::format("--nnodes={} was given outside Slurm", range_text(options.nodes)),
            .nodes = options.nodes,
            .spares = options.spares};
  }
  return {.role = LaunchRole::alone, .reason = "one node", .nodes = one};
}

void leave_surrounding_step() noexcept {
  try {
    const auto settings = base::drop_step_settings();
    if (!settings || settings->cpus.empty()) return;
    const Binding own{.cpus = CpuSet::parse(settings->cpus), .preferred_memory = -1};
    for (const std::string& remark : own.apply()) base::write_stderr_line("ddprun: warning: " + remark);
    ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddprun: warning: ranks keep to the cores of this task: {}", error.what()));
  }
}

namespace {

// Time for debuggers to read the symbols of all ranks of a node (gdb: seconds with libtorch's).
constexpr std::chrono::seconds kStackLimit{25};
// How often a running job waits for one more node before those that have come may begin.
constexpr int kScaleUpDelays = 5;

}  // namespace

CoordinatorOptions coordinator_options(const LaunchOptions& options, const RoleDecision& role,
                                       const base::Environment& environment) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool endpoint = role.role == LaunchRole::endpoint;
  const bool frontend = role.role == LaunchRole::frontend;
  const bool fixed = endpoint && rendezvous.backend != RendezvousBackend::c10d;
  return {.membership = {.min_nodes = role.nodes.min,
                         .max_nodes = role.nodes.max,
                         .spares = role.spares,
                         .absent = role.absent,
                         .run_id = rendezvous.run_id,
                         .version = DDP_VERSION_STRING,
                         .allocation = role.joinable() ? environment.raw("SLURM_JOB_ID").value_or("") : "",
                         .settings = options.elastic_settings,
                         .join_timeout = fixed ? rendezvous.static_timeout : rendezvous.join_timeout,
                         .last_call = rendezvous.last_call_timeout,
                         .replaceable = endpoint,
                         .joinable = role.joinable(),
                         .expands = role.expands,
                         .grow_to = options.grow_to,
                         .max_restarts = options.max_restarts,
                         .crash_loop = options.crash_loop,
                         .scale_up_delay = rendezvous.scale_up_delay,
                         .scale_up_limit = kScaleUpDelays * rendezvous.scale_up_delay},
          .failure_grace = options.failure_grace,
          .shutdown_timeout = options.shutdown_timeout,
          .resize = options.resize,
          .timeout = options.timeout,
          .stack_limit = kStackLimit,
          .hang_report_after = options.hang_report_after,
          .end_hung = options.end_hung,
          .ending_signals = options.ending_signals,
          .forwarded_signals = options.forwarded_signals,
          .torchrun_exit_codes = options.torchrun_exit_codes,
          .terminal_out = frontend && ::isatty(STDOUT_FILENO) == 1,
          .terminal_err = frontend && ::isatty(STDERR_FILENO) == 1,
          .job_console = !endpoint && role.nodes.max > 1,
          .log_name = log_name(options, environment)};
}

bool needs_log_folder(const LogOptions& logs) {
  const auto wanted = [](const StreamSelection& selection) {
    return selection.all != Streams::none || !selection.by_local_rank.empty();
  };
  return !logs.directory && (wanted(logs.redirects) || wanted(logs.tee));
}

std::string make_log_folder(const std::string& parent) {
  std::string folder = parent + "/ddprun_logs_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw base::system_error(fmt::format("making the log folder '{}'", folder), errno, "give another with --log-dir");
  return folder;
}

std::string log_name(const LaunchOptions& options, const base::Environment& environment) {
  const std::string& run_id = options.rendezvous.run_id;
  const bool given = !options.standalone && run_id != RendezvousOptions{}.run_id;
  const auto job = environment.raw("SLURM_JOB_ID");
  if (given || !job || job->empty()) return run_id;
  // Reads only these two, as other variables may be wrong without consequence here.
  const auto step = base::SlurmStep::read(
      base::Environment{{{"SLURM_JOB_ID", *job}, {"SLURM_STEP_ID", environment.raw("SLURM_STEP_ID").value_or("")}}});
  return step.kind == base::SlurmStep::Kind::user ? step.name : *job;
}

}  // namespace ddp::launcher
