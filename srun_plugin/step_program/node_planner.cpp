#include "step_program/node_planner.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>
#include <ddp/version.hpp>

#include "base/backend_file.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/hostlist.hpp"
#include "topology/network/interface_agreement.hpp"
#include "topology/network/user_interfaces.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::srun_plugin {
namespace {

bool of_gpus(std::string_view name) { return name.starts_with("NCCL_") || name.starts_with("UCX_"); }

bool of_cpus(std::string_view backend) {
  const auto names = base::backends_of(backend);
  return names && names->cpu == "host" && names->cuda.empty();
}

std::vector<NetworkInterface> known_interfaces() {
  std::vector<NetworkInterface> interfaces;
  for (topology::InterfaceFact& fact : topology::read_usable_interfaces())
    interfaces.push_back(std::move(fact.interface));
  return interfaces;
}

void add_plans(NodeAnswer& answer, const Topology& topology, const NodeQuestion& question,
               const NodeResources& resources, topology::NodeRequest request) {
  for (const Bytes& bytes : resources.tasks) request.ranks.push_back(topology::decode_resources(bytes));
  for (topology::RankPlan& rank : topology::plan_node(topology, request)) {
    TaskPlan task{.summary = std::move(rank.summary)};
    if (rank.binding) {
      task.cpus = rank.binding->cpus.to_string();
      task.preferred_memory = rank.binding->preferred_memory;
    }
    for (topology::Setting& setting : rank.settings) {
      if (!setting.conflict.empty() && rank.placement.local_rank == 0) {
        answer.remarks.push_back(
            fmt::format("{} was kept, but {}", topology::assignment(setting.name, setting.value), setting.conflict));
      }
      if (setting.by_user || (of_cpus(question.backend) && of_gpus(setting.name))) continue;
      task.settings.emplace_back(std::move(setting.name), std::move(setting.value));
    }
    answer.tasks.push_back(std::move(task));
  }
}

}  // namespace

OwnNetwork read_own_network(const NodeQuestion& question, const base::Environment& environment) {
  OwnNetwork own;
  try {
    std::vector<std::string> peers = topology::expand_hostlist(question.node_list);
    own.first_node = !peers.empty() && peers.front() == question.node_name;
    std::erase(peers, question.node_name);
    own.several_nodes = !peers.empty();
    own.search = topology::find_candidates(
        environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"), peers,
        peers.empty() ? topology::JobSpan::one_node : topology::JobSpan::several_nodes);
  } catch (const Error& error) {
    own.remarks.push_back(fmt::format("no network interface is chosen: {}", error.what()));
  }
  return own;
}

NetworkChoice choose_network(const OwnNetwork& own, const std::optional<topology::SocketInterface>& agreed,
                             const base::Environment& environment) {
  NetworkChoice choice{.remarks = own.remarks};
  const auto& candidates = own.search.candidates;
  if (candidates.empty()) return choice;
  if (!own.several_nodes || candidates.size() == 1) {
    choice.interface = {.name = candidates.front().interface, .reason = own.search.reason};
    if (own.several_nodes) choice.interface.address = candidates.front().at.address.address;
  } else if (agreed && !agreed->name.empty()) {
    choice.interface = *agreed;
  } else {
    std::vector<topology::CandidateAddress> addresses;
    for (const topology::InterfaceCandidate& candidate : candidates) addresses.push_back(candidate.at);
    const auto& routing = candidates[topology::pick(addresses, {})];
    choice.interface = {.name = routing.interface,
                        .address = routing.at.address.address,
                        .reason = agreed ? agreed->reason : "it routes to the others"};
  }
  if (!own.several_nodes) return choice;
  std::string local = topology::local_interface_warning(environment, known_interfaces(), choice.interface.name);
  if (!local.empty()) own.first_node ? void(choice.warning = std::move(local)) : choice.remarks.push_back(local);
  return choice;
}

NodeAnswer make_answer(const Topology* topology, const NodeQuestion& question, const NodeResources& resources,
                       const NodeFindings& findings, const base::Environment& environment,
                       const std::vector<base::NcclConf>& nccl_conf) {
  NodeAnswer answer{.version = DDP_VERSION_STRING, .meeting = findings.meeting, .remarks = findings.remarks};
  if (topology != nullptr) {
    add_plans(answer, *topology, question, resources,
              {.bind = question.bind,
               .gpus = question.gpus,
               .interface = {.name = findings.interface,
                             .address = findings.interface_address,
                             .reason = findings.interface_reason},
               .environment = environment,
               .nccl_conf = nccl_conf});
    return answer;
  }
  TaskPlan task{.summary = "not placed"};
  const auto set = [&](const char* variable, std::string value) {
    if (!findings.interface.empty() && !environment.has(variable))
      task.settings.emplace_back(variable, std::move(value));
  };
  for (const char* const name : {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) set(name, findings.interface);
  const bool in_file = base::value_in(nccl_conf, "NCCL_SOCKET_IFNAME").value != nullptr;
  if (!of_cpus(question.backend) && !in_file) set("NCCL_SOCKET_IFNAME", "=" + findings.interface);
  answer.tasks.push_back(std::move(task));
  return answer;
}

}  // namespace ddp::srun_plugin
