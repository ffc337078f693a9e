#include "launch/slurm_frontend.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/errors.hpp"
#include "launch/job_input.hpp"
#include "launch/launcher_process.hpp"
#include "options/host_list.hpp"
#include "options/worker_command.hpp"

namespace ddp::launcher {
namespace {

// srun ends after its tasks; a busy controller may report that late.
constexpr std::chrono::seconds kSrunTermPatience{10};

// srun also reads options from the environment (srun(1), INPUT ENVIRONMENT VARIABLES). These are for the ranks; an
// agent takes the whole node and divides it itself.
constexpr std::array<std::string_view, 25> kTaskOptions{"SLURM_NTASKS",
                                                        "SLURM_NPROCS",
                                                        "SLURM_NTASKS_PER_NODE",
                                                        "SLURM_NTASKS_PER_CORE",
                                                        "SLURM_NTASKS_PER_GPU",
                                                        "SLURM_NTASKS_PER_TRES",
                                                        "SLURM_CPUS_PER_TASK",
                                                        "SRUN_CPUS_PER_TASK",
                                                        "SLURM_CPUS_PER_GPU",
                                                        "SLURM_GPUS_PER_TASK",
                                                        "SLURM_TRES_PER_TASK",
                                                        "SLURM_GPU_BIND",
                                                        "SLURM_TRES_BIND",
                                                        "SLURM_CPU_BIND",
                                                        "SLURM_CPU_BIND_TYPE",
                                                        "SLURM_CPU_BIND_LIST",
                                                        "SLURM_CPU_BIND_VERBOSE",
                                                        "SLURM_DISTRIBUTION",
                                                        "SLURM_HOSTFILE",
                                                        "SLURM_ARBITRARY_NODELIST",
                                                        "SLURM_HINT",
                                                        "SLURM_THREADS_PER_CORE",
                                                        "SLURM_EXACT",
                                                        "SLURM_EXCLUSIVE",
                                                        "SLURM_MULTI_PROG"};

/// What srun starts. A word ":" would end its command line, and begin another component's.
std::vector<std::string> agent_command(const std::string& ddprun, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{ddprun};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (std::find(command.begin(), command.end(), ":") == command.end()) return command;
  std::string line = "exec";
  for (const std::string& word : command) line += " " + shell_quoted(word);
  return {"/bin/sh", "-c", std::move(line)};
}

}  // namespace

StepInput step_input(StandardInput wanted) {
  if (wanted != StandardInput::all || input_is_empty()) {
    StepInput none{.tasks = "none", .stream = base::UniqueFd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}};
    if (!none.stream) throw base::system_error("opening /dev/null", errno);
    return none;
  }
  return {.tasks = "all", .stream = ::isatty(STDIN_FILENO) == 1 ? relay_input() : base::UniqueFd{}};
}

std::vector<std::string> agent_step_command(const std::vector<int>& components, const std::string& ddprun,
                                            const std::vector<std::string>& arguments, const std::string& input_tasks,
                                            const std::vector<std::string>& order) {
  const std::vector<std::string> agent = agent_command(ddprun, arguments);
  std::vector<std::string> command{"srun"};
  for (std::size_t component = 0; component < components.size(); ++component) {
    const int nodes = components[component];
    if (nodes == 0) continue;
    const bool first = command.size() == 1;
    if (!first) command.emplace_back(":");
    if (components.size() > 1) command.push_back(fmt::format("--het-group={}", component));
    const std::string part[]{"--quiet",  // errors still show
                             fmt::format("--nodes={}", nodes),
                             fmt::format("--ntasks={}", nodes),
                             "--ntasks-per-node=1",
                             "--overlap",
                             "--mpi=none",
                             "--no-kill",
                             "--kill-on-bad-exit=0",
                             "--wait=0",
                             fmt::format("--input={}", input_tasks),
                             "--export=ALL",
                             "--job-name=ddprun"};
    command.insert(command.end(), std::begin(part), std::end(part));
    if (!order.empty()) {
      const std::span<const std::string> wanted = std::span{order}.first(std::min<std::size_t>(order.size(), nodes));
      // the list says both, and Slurm 24.11 refuses the number beside it
      std::erase(command, "--ntasks-per-node=1");
      std::erase(command, part[1]);
      command.emplace_back("--distribution=arbitrary");
      command.push_back(fmt::format("--nodelist={}", fmt::join(wanted, ",")));
    }
    command.insert(command.end(), agent.begin(), agent.end());
  }
  return command;
}

void leave_task_binding() {
  std::array<unsigned long, 1024> all;  // 64 Ki processors, more than kernels are built for
  all.fill(~0UL);
  // The kernel reduces it to the cgroup's cpuset. If it refuses, the agent keeps Slurm's mask.
  ::syscall(SYS_sched_setaffinity, 0, sizeof all, all.data());
}

std::map<std::string, std::string, std::less<>> agent_step_environment(const base::Environment& environment,
                                                                       const RendezvousPoint& point) {
  auto variables = environment.variables();
  std::erase_if(variables, [](const auto& variable) {
    // of a component: SLURM_NTASKS_HET_GROUP_1, SLURM_NTASKS_PACK_GROUP_1
    const std::string_view name = std::string_view(variable.first);
    const std::string_view option = name.substr(0, std::min(name.find("_HET_GROUP_"), name.find("_PACK_GROUP_")));
    return std::find(kTaskOptions.begin(), kTaskOptions.end(), option) != kTaskOptions.end();
  });
  variables[kAgentVariable] = point.encode();
  return variables;
}

SrunProcess::SrunProcess(const std::vector<std::string>& command,
                         const std::map<std::string, std::string, std::less<>>& environment, int standard_input) {
  const auto search_path = environment.find("PATH");
  const std::string path =
      find_program("srun", search_path != environment.end() ? search_path->second : "/bin:/usr/bin");
  process_ = start_launcher({.path = path,
                             .words = command,
                             .environment = environment,
                             .standard_input = standard_input,
                             .standard_error = STDERR_FILENO});
}

SrunProcess::~SrunProcess() { process_.terminate(Deadline::after(kSrunTermPatience)); }

std::optional<int> SrunProcess::exit_status() {
  const auto end = process_.end();
  return end ? std::optional{end->shell_status()} : std::nullopt;
}

}  // namespace ddp::launcher
