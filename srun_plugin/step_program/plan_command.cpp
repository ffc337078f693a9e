#include "step_program/plan_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/hostlist.hpp"
#include "topology/network/interface_candidates.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::srun_plugin {
namespace {

/// On one node loopback. Between nodes the interface that routes to the others: nodes cannot agree on a better one
/// before their tasks start, and a fabric that only some have would separate them.
topology::SocketInterface choose_interface(const PlanQuestion& question, const base::Environment& environment) {
  std::vector<std::string> peers = topology::expand_hostlist(question.node_list);
  std::erase(peers, question.node_name);
  const auto found =
      topology::find_candidates(environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"),
                                peers, peers.empty() ? topology::JobSpan::one_node : topology::JobSpan::several_nodes);
  const auto routed = std::find_if(found.candidates.begin(), found.candidates.end(),
                                   [](const topology::InterfaceCandidate& each) { return each.at.routes_to_peers; });
  if (peers.empty() || routed == found.candidates.end()) {
    return {.name = found.candidates.front().interface, .address = {}, .reason = found.reason};
  }
  return {.name = routed->interface, .address = {}, .reason = "it routes to the other nodes of the step"};
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
  topology::NodeRequest request{
      .bind = question.bind, .gpus = question.gpus, .ranks = {}, .interface = {}, .environment = environment};
  for (const Bytes& bytes : question.resources) request.ranks.push_back(topology::decode_resources(bytes));
  try {
    request.interface = choose_interface(question, environment);
  } catch (const std::exception& error) {
    plan.remarks.push_back(fmt::format("no network interface is chosen: {}", error.what()));
  }
  for (topology::RankPlan& rank : topology::plan_node(topology, request)) {
    TaskPlan task{.binding = std::move(rank.binding), .settings = {}, .summary = std::move(rank.summary)};
    for (topology::Setting& setting : rank.settings) {
      if (!setting.conflict.empty() && rank.placement.local_rank == 0) {
        plan.remarks.push_back(fmt::format("{}={} was kept, but {}", setting.name, setting.value, setting.conflict));
      }
      if (setting.by_user || (question.backend == "gloo" && of_gpus(setting.name))) continue;
      task.settings.emplace_back(std::move(setting.name), std::move(setting.value));
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
