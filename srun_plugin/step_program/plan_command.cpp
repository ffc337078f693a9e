#include "step_program/plan_command.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/backend_file.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/nccl_conf.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::srun_plugin {
namespace {

bool of_gpus(std::string_view name) { return name.starts_with("NCCL_") || name.starts_with("UCX_"); }
bool of_cpus(std::string_view backend) {
  const auto names = base::backends_of(backend);
  return names && names->cpu == "host" && names->cuda.empty();
}

Bytes read_input() {
  Bytes bytes;
  std::array<std::byte, 4096> block{};
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0) return bytes;
    if (count > 0) {
      bytes.insert(bytes.end(), block.begin(), block.begin() + count);
    } else if (errno != EINTR) {
      throw base::system_error("reading the question about this node", errno);
    }
  }
}

void write_output(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, data.data(), data.size());
    if (count > 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw base::system_error("writing the plan of this node", errno);
    }
  }
}

}  // namespace

NodePlan make_node_plan(const Topology& topology, const PlanQuestion& question, const NetworkChoice& network,
                        const base::Environment& environment, const std::vector<base::NcclConf>& nccl_conf) {
  NodePlan plan{.remarks = network.remarks};
  topology::NodeRequest request{.bind = question.bind,
                                .gpus = question.gpus,
                                .interface = network.interface,
                                .environment = environment,
                                .nccl_conf = nccl_conf};
  for (const Bytes& bytes : question.resources) request.ranks.push_back(topology::decode_resources(bytes));
  for (topology::RankPlan& rank : topology::plan_node(topology, request)) {
    TaskPlan task{.binding = std::move(rank.binding), .summary = std::move(rank.summary)};
    for (topology::Setting& setting : rank.settings) {
      if (!setting.conflict.empty() && rank.placement.local_rank == 0) {
        plan.remarks.push_back(
            fmt::format("{} was kept, but {}", topology::assignment(setting.name, setting.value), setting.conflict));
      }
      if (setting.by_user || (of_cpus(question.backend) && of_gpus(setting.name))) continue;
      task.settings.emplace_back(std::move(setting.name), std::move(setting.value));
    }
    plan.tasks.push_back(std::move(task));
  }
  return plan;
}

NodePlan make_network_plan(const PlanQuestion& question, const NetworkChoice& network,
                           const base::Environment& environment, const std::vector<base::NcclConf>& nccl_conf) {
  TaskPlan task{.summary = "not placed"};
  const std::string& name = network.interface.name;
  const auto set = [&](const char* variable, std::string value) {
    if (!name.empty() && !environment.has(variable)) task.settings.emplace_back(variable, std::move(value));
  };
  set("GLOO_SOCKET_IFNAME", name);
  const bool in_file = base::value_in(nccl_conf, "NCCL_SOCKET_IFNAME").value != nullptr;
  if (!of_cpus(question.backend) && !in_file) set("NCCL_SOCKET_IFNAME", "=" + name);
  return {.tasks = {std::move(task)}, .remarks = network.remarks};
}

int answer_plan() {
  try {
    const PlanQuestion question = decode_question(read_input());
    const base::Environment environment = base::Environment::process();
    // While nodes wait for each other, this one reads its machine.
    auto network = std::async(std::launch::async, [&] { return choose_network(question, environment); });
    std::optional<Topology> topology;
    if (!question.resources.empty()) topology = Topology::live();
    const NetworkChoice choice = network.get();
    if (choice.step_ends) return 128 + SIGTERM;
    if (!choice.warning.empty()) base::write_stderr_line(fmt::format("ddp: warning: {}", choice.warning));
    const auto nccl_conf = base::read_nccl_conf(environment, base::home_folder(environment));
    write_output(encode(topology ? make_node_plan(*topology, question, choice, environment, nccl_conf)
                                 : make_network_plan(question, choice, environment, nccl_conf)));
    return 0;
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-step: {}", error.what()));
    return 1;
  }
}

}  // namespace ddp::srun_plugin
