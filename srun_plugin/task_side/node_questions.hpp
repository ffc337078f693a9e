// Who a task is, by what Slurm says in its environment, and what the first task of a node asks ddp-step for all tasks
// of the node. What does not work is one line on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/message.hpp"
#include "srun_side/plugin_options.hpp"
#include "topology/placement/option_words.hpp"

namespace ddp::srun_plugin {

// ---- the messages ----------------
// Both processes are of one installation, except while a site upgrades: then the messages' versions differ.

/// Of these messages: their first byte.
inline constexpr std::uint8_t kNodeVersion = 5;

/// Who asks. Comes first, so that ddp-step begins while other tasks of the node are still being prepared.
struct NodeQuestion {
  std::string version{};       ///< of libddp's plugin
  std::string step{};          ///< "1234.0"
  std::string program{};       ///< of the tasks
  std::string node_list{};     ///< of the step, as Slurm writes it
  std::string node_name{};     ///< this node's name in it
  std::string srun_address{};  ///< of srun's host, as this node sees it
  std::uint16_t port = 0;      ///< of ddp-step beside srun; 0: there is none
  std::string secret{};        ///< of the step: 64 hexadecimal digits; empty without a port
  std::uint32_t node_rank = 0;
  std::uint32_t num_nodes = 1;
  std::uint32_t world_size = 1;
  std::vector<std::int32_t> ranks{};  ///< of this node's tasks, by local rank
  std::int32_t first_rank = 0;        ///< of the component of the step, from which Slurm counts tasks
  bool has_channel = false;           ///< of EndChannel, at DdpStepClient::kInheritedFd
  std::uint16_t patience_seconds = 10;
  std::uint32_t hang_report_after_s = 0;        ///< 0: never
  std::uint32_t progress_seconds = 0;           ///< 0: never
  std::optional<std::uint16_t> metrics_port{};  ///< 0: any
  std::string metrics_address = "127.0.0.1";
  BindPolicy bind = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  std::string backend = "auto";  ///< word of --ddp-backend
};
constexpr auto description(const NodeQuestion*) {
  using Q = NodeQuestion;
  return base::describe(
      {"question about a node", kNodeVersion}, base::fields<&Q::version>(), base::fields<&Q::step>(),
      base::fields<&Q::program>(), base::fields<&Q::node_list>(), base::fields<&Q::node_name>(),
      base::fields<&Q::srun_address>(), base::fields<&Q::port>(), base::fields<&Q::secret>(),
      base::fields<&Q::node_rank>(), base::fields<&Q::num_nodes>(), base::fields<&Q::world_size>(),
      base::fields<&Q::ranks>(base::kCount), base::fields<&Q::first_rank>(), base::fields<&Q::has_channel>(),
      base::fields<&Q::patience_seconds>(), base::fields<&Q::hang_report_after_s>(),
      base::fields<&Q::progress_seconds>(), base::fields<&Q::metrics_port>(), base::fields<&Q::metrics_address>(),
      base::fields<&Q::bind>(base::kUpTo<BindPolicy::none>),
      base::fields<&Q::gpus>(base::kUpTo<topology::GpuVisibility::none>), base::fields<&Q::backend>());
}

/// What the tasks may use: topology::RankResources of each, by local rank. None: tasks that cannot be placed together
/// want to know the network, in a TaskPlan that suits each.
struct NodeResources {
  std::vector<Bytes> tasks{};
};
constexpr auto description(const NodeResources*) {
  return base::describe({"resources of a node's tasks", kNodeVersion}, base::fields<&NodeResources::tasks>());
}

/// What one task gets.
struct TaskPlan {
  std::string cpus{};                                           ///< of its mask, "0-3,8"; empty: it keeps its own
  std::int32_t preferred_memory = -1;                           ///< as Binding has it
  std::vector<std::pair<std::string, std::string>> settings{};  ///< variables that the user has not set
  std::string summary{};                                        ///< "4 cores (0-3), GPU 1 (0000:3b:00.0)"
};
constexpr auto description(const TaskPlan*) {
  return base::describe({"plan of a task"}, base::fields<&TaskPlan::cpus>(),
                        base::fields<&TaskPlan::preferred_memory>(), base::fields<&TaskPlan::settings>(),
                        base::fields<&TaskPlan::summary>());
}

/// Where the step's nodes meet, for tasks of this node.
struct Meeting {
  bool reached = false;         ///< ddp-step beside srun
  std::string flaw{};           ///< why that, or the store, is out of the tasks' reach; empty: it is not
  std::string refusal{};        ///< why no program of this node may start; empty: they may
  bool step_ends = false;       ///< Slurm ends the step before its programs have started
  std::string store_address{};  ///< of the ranks' store, numeric
  std::uint16_t store_port = 0;
};
constexpr auto description(const Meeting*) {
  return base::describe({"meeting of a step"}, base::fields<&Meeting::reached>(), base::fields<&Meeting::flaw>(),
                        base::fields<&Meeting::refusal>(), base::fields<&Meeting::step_ends>(),
                        base::fields<&Meeting::store_address>(), base::fields<&Meeting::store_port>());
}

struct NodeAnswer {
  std::string version{};  ///< of ddp-step
  Meeting meeting{};
  std::vector<TaskPlan> tasks{};       ///< by local rank
  std::vector<std::string> remarks{};  ///< what the user may want to know
  std::string flaw{};                  ///< why there is no plan; empty: there is
};
constexpr auto description(const NodeAnswer*) {
  return base::describe({"answer about a node", kNodeVersion}, base::fields<&NodeAnswer::version>(),
                        base::fields<&NodeAnswer::meeting>(), base::fields<&NodeAnswer::tasks>(),
                        base::fields<&NodeAnswer::remarks>(), base::fields<&NodeAnswer::flaw>());
}

/// The bytes behind their number, for streams that carry several messages.
Bytes framed(const Bytes& message);
/// The next such message of a pipe or socket. Throws Error: peer_lost at the stream's end, timeout, protocol.
Bytes read_framed(int fd, Deadline deadline);

// ---- a task asks ----------------

/// base::SlurmStep of a task, complete, and where srun is.
struct TaskFacts {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  std::vector<std::int32_t> node_ranks{};  ///< of all tasks of the node, by local rank
  std::string step{};                      ///< "1234.0"
  std::string node_list{};                 ///< of the step
  std::string node_name{};
  std::string srun_address{};  ///< numeric, as the node sees the host of srun
};

/// @param local_tasks of this node, as SPANK knows them.
/// Of a step with several components, numbers are those of the whole step. Throws Error(unavailable) naming the
/// variable that is missing.
TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks);

/// "ddp: warning: rank 2 on n1: TEXT"
void warn(const TaskFacts& facts, std::string_view text);

struct NodeAsker {
  std::string helper{};   ///< helper= of plugstack.conf
  std::string command{};  ///< of the tasks
  int first_rank = 0;     ///< of this component's tasks
  int ends = -1;          ///< of the channel for their ends; -1: there is none, and the tasks cannot be watched
};

/// Starts ddp-step, the node's agent in the step, and asks it for a plan. @param resources of the node's tasks, as
/// NodeResources has them: waits for them. Where it fails, after a warning, the answer has no plan and no store.
NodeAnswer ask_node(const NodeAsker& asker, const StepTicket& ticket, const TaskFacts& facts,
                    const base::Environment& environment, const std::function<std::vector<Bytes>()>& resources);

/// How long ask_node() may take, besides @p resources.
std::chrono::seconds answer_limit(const StepTicket& ticket);

/// @param program helper= of plugstack.conf. @param name by which the task's program will be executed. @param
/// environment that it will have
/// @return whether the program may start: not where the nodes have errors, which were said. Throws Error where it could
/// not be tried.
bool run_before(const std::string& program, const BeforeProgram& before, const std::string& name,
                const base::Environment& environment);

}  // namespace ddp::srun_plugin
