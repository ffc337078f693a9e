#include "step_program/plan_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/hostlist.hpp"
#include "topology/network/interface_candidates.hpp"
#include "topology/placement/placement_summary.hpp"
#include "topology/placement/rank_gpus.hpp"
#include "topology/placement/settings.hpp"

namespace ddp::srun_plugin {
namespace {

struct SocketInterface {
  std::string name;
  std::string reason;
};

/// On one node loopback. Between nodes the interface that routes to the others: the nodes cannot agree on a better one
/// before their tasks have started, and a fabric that only some of them have would keep them apart.
SocketInterface choose_interface(const PlanQuestion& question, const base::Environment& environment) {
  std::vector<std::string> peers = topology::expand_hostlist(question.node_list);
  std::erase(peers, question.node_name);
  const auto found =
      topology::find_candidates(environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"),
                                peers, peers.empty() ? topology::JobSpan::one_node : topology::JobSpan::several_nodes);
  const auto routed = std::find_if(found.candidates.begin(), found.candidates.end(),
                                   [](const topology::InterfaceCandidate& each) { return each.at.routes_to_peers; });
  if (peers.empty() || routed == found.candidates.end()) return {found.candidates.front().interface, found.reason};
  return {routed->interface, "it routes to the other nodes of the step"};
}

bool of_gpus(std::string_view name) { return name.starts_with("NCCL_") || name.starts_with("UCX_"); }

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

NodePlan make_node_plan(const Topology& topology, const PlanQuestion& question, const base::Environment& environment) {
  NodePlan plan;
  std::vector<topology::RankResources> ranks;
  PlacementRequest request{.num_ranks = static_cast<int>(question.resources.size()),
                           .policy = parse_bind_policy(question.bind),
                           .allowed = {},
                           .gpus = std::nullopt};
  for (const Bytes& bytes : question.resources) {
    ranks.push_back(topology::decode_resources(bytes));
    request.allowed.push_back(ranks.back().cpus);
  }
  request.gpus = topology::gpus_of_ranks(topology, ranks);
  const std::vector<Placement> placements = place(topology, request);
  SocketInterface interface;
  try {
    interface = choose_interface(question, environment);
  } catch (const std::exception& error) {
    plan.remarks.push_back(fmt::format("no network interface is chosen: {}", error.what()));
  }
  const bool bound = request.policy != BindPolicy::none;
  for (int local_rank = 0; local_rank < request.num_ranks; ++local_rank) {
    const auto index = static_cast<std::size_t>(local_rank);
    const auto found = std::find_if(placements.begin(), placements.end(),
                                    [&](const Placement& each) { return each.local_rank == local_rank; });
    TaskPlan task{.cpus = {}, .preferred_memory = -1, .settings = {}, .summary = topology::summarize(topology, *found)};
    if (bound) {
      const Binding binding = Binding::from(topology, *found);
      task.cpus = binding.cpus.to_string();
      task.preferred_memory = binding.preferred_memory;
    }
    auto variables = environment.variables();
    for (const auto& [name, value] : ranks[index].devices) variables.insert_or_assign(name, value);
    const auto settings = topology::derive_settings(topology, placements, local_rank,
                                                    {.gpus = topology::parse_gpu_visibility(question.gpus),
                                                     .bound = bound,
                                                     .socket_interface = interface.name,
                                                     .socket_interface_reason = interface.reason},
                                                    base::Environment{std::move(variables)});
    for (const topology::Setting& setting : settings) {
      if (!setting.conflict.empty() && local_rank == 0) {
        plan.remarks.push_back(fmt::format("{}={} was kept, but {}", setting.name, setting.value, setting.conflict));
      }
      if (setting.by_user || (question.backend == "gloo" && of_gpus(setting.name))) continue;
      task.settings.emplace_back(setting.name, setting.value);
    }
    plan.tasks.push_back(std::move(task));
  }
  return plan;
}

int answer_plan() {
  try {
    const PlanQuestion question = decode_question(read_input());
    write_output(encode(make_node_plan(Topology::live(), question, base::Environment::process())));
    return 0;
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-step: {}", error.what()));
    return 1;
  }
}

}  // namespace ddp::srun_plugin
