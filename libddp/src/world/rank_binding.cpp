#include "world/rank_binding.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/log.hpp"
#include "base/message.hpp"
#include "topology/placement/node_planner.hpp"

namespace ddp::world {
namespace {

constexpr std::array kReadByRuntimesAtStart{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",    "GPU_DEVICE_ORDINAL",
                                            "HIP_VISIBLE_DEVICES",  "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"};

/// From the first rank of a node to the others.
struct NodeTopology {
  std::string policy;
  std::string xml;
};
constexpr auto description(const NodeTopology*) {
  return base::describe({"node's topology"}, base::fields<&NodeTopology::policy, &NodeTopology::xml>());
}

/// Those that a program may still set.
std::vector<EnvironmentSetting> open_settings(std::vector<topology::Setting> settings) {
  std::vector<EnvironmentSetting> open;
  for (topology::Setting& setting : settings) {
    if (!setting.conflict.empty()) {
      base::log(base::LogLevel::warning, "{} was kept, but {}", topology::assignment(setting.name, setting.value),
                setting.conflict);
    }
    const bool too_late = std::find(kReadByRuntimesAtStart.begin(), kReadByRuntimesAtStart.end(), setting.name) !=
                          kReadByRuntimesAtStart.end();
    if (setting.by_user || too_late) continue;
    open.push_back(
        {.name = std::move(setting.name), .value = std::move(setting.value), .reason = std::move(setting.reason)});
  }
  return open;
}

}  // namespace

RankBinding::RankBinding(const base::Environment& environment, int world_size)
    : environment_(environment),
      policy_(topology::bind_policy_of(environment).value_or(BindPolicy::none)),
      alone_(world_size == 1) {}

void RankBinding::publish(KeyValueStore& store, const std::string& key, bool leader) {
  if (policy_ == BindPolicy::none) return;
  store.put_on_node(key + ".resources", base::encode(topology::resources_of_process(environment_)));
  if (!leader) return;
  try {
    const std::string xml = Topology::live().to_xml();
    base::log(base::LogLevel::debug, "read the topology of this machine for its ranks: {} bytes of XML", xml.size());
    store.put_on_node(key + ".node", base::encode(NodeTopology{.policy = std::string(to_string(policy_)), .xml = xml}));
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "{}", error.what());  // the other ranks will report it missing
  }
}

std::optional<BoundRank> RankBinding::apply(KeyValueStore& store, const std::string& key,
                                            const std::vector<int>& local_ranks, int rank,
                                            const topology::SocketInterface& interface, Deadline deadline) {
  if (policy_ == BindPolicy::none) return std::nullopt;
  try {
    topology::NodeRequest request{.bind = policy_,
                                  .gpus = topology::GpuVisibility::none,
                                  .interface = interface,
                                  .environment = environment_,
                                  .nccl_conf = base::read_nccl_conf(environment_, base::home_folder(environment_))};
    std::optional<Topology> topology;
    if (alone_) {
      topology = Topology::live();
      request.ranks.push_back(topology::resources_of_process(environment_));
    } else {
      const auto node = base::decode<NodeTopology>(store.get_on_node(local_ranks.front(), key + ".node", deadline));
      request.bind = parse_bind_policy(node.policy);
      topology = Topology::from_xml(node.xml, "what this node's first rank read");
      for (const int each : local_ranks) {
        request.ranks.push_back(
            base::decode<topology::RankResources>(store.get_on_node(each, key + ".resources", deadline)));
      }
    }
    if (request.bind != policy_) {
      base::log(base::LogLevel::warning, "DDP_BIND is {}, but {} in the first rank of this node, whose value applies",
                to_string(policy_), to_string(request.bind));
    }
    const auto own = std::find(local_ranks.begin(), local_ranks.end(), rank) - local_ranks.begin();
    topology::RankPlan plan = std::move(topology::plan_node(*topology, request).at(static_cast<std::size_t>(own)));
    for (const std::string& remark : plan.binding.value().apply()) base::log(base::LogLevel::warning, "{}", remark);
    base::log(base::LogLevel::info, "bound to processors {} by policy {}", plan.binding->cpus.to_string(),
              to_string(request.bind));
    return BoundRank{.placement = std::move(plan.placement), .settings = open_settings(std::move(plan.settings))};
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "this rank is not bound to processors: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace ddp::world
