#include "world/rank_binding.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/log.hpp"
#include "topology/placement/rank_gpus.hpp"
#include "topology/placement/settings.hpp"
#include "world/world_state.hpp"

namespace ddp::world {
namespace {

constexpr std::array kReadByRuntimesAtStart{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES",
                                            "ZE_AFFINITY_MASK"};

topology::RankResources own_resources(const base::Environment& environment) {
  return {.policy = environment.text("DDP_BIND"),
          .cpus = Binding::current().cpus,
          .devices = topology::device_variables(environment)};
}

void set_environment(const std::vector<topology::Setting>& settings) {
  for (const topology::Setting& setting : settings) {
    if (!setting.conflict.empty()) {
      base::log(base::LogLevel::warning, "{}={} was kept, but {}", setting.name, setting.value, setting.conflict);
    }
    const bool too_late = std::find(kReadByRuntimesAtStart.begin(), kReadByRuntimesAtStart.end(), setting.name) !=
                          kReadByRuntimesAtStart.end();
    if (setting.by_user || too_late) continue;
    ::setenv(setting.name.c_str(), setting.value.c_str(), 0);
    base::log(base::LogLevel::debug, "set {}={}: {}", setting.name, setting.value, setting.reason);
  }
}

}  // namespace

RankBinding::RankBinding(const base::Environment& environment, int world_size)
    : environment_(environment), alone_(world_size == 1) {
  const std::string policy = environment.text("DDP_BIND");
  if (policy.empty()) return;
  wanted_ = parse_bind_policy(policy) != BindPolicy::none;
}

void RankBinding::publish(KeyValueStore& store, const std::string& key, bool leader) {
  if (!wanted_) return;
  store.put_on_node(key + ".resources", topology::encode(own_resources(environment_)));
  if (!leader) return;
  try {
    const std::string xml = Topology::live().to_xml();
    base::log(base::LogLevel::debug, "read the topology of this machine for its ranks: {} bytes of XML", xml.size());
    store.put_on_node(key + ".topology", std::as_bytes(std::span{xml.data(), xml.size()}));
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "{}", error.what());  // the others will miss it and say so
  }
}

std::optional<Placement> RankBinding::apply(KeyValueStore& store, const std::string& key,
                                            const std::vector<int>& local_ranks, int rank,
                                            const InterfaceChoice& interface, Deadline deadline) {
  if (!wanted_) return std::nullopt;
  try {
    std::vector<topology::RankResources> resources;
    std::optional<Topology> topology;
    if (alone_) {
      topology = Topology::live();
      resources.push_back(own_resources(environment_));
    } else {
      const Bytes xml = store.get_on_node(local_ranks.front(), key + ".topology", deadline);
      topology = Topology::from_xml({reinterpret_cast<const char*>(xml.data()), xml.size()},
                                    "what this node's first rank read");
      for (const int each : local_ranks) {
        resources.push_back(topology::decode_resources(store.get_on_node(each, key + ".resources", deadline)));
      }
    }
    for (const topology::RankResources& each : resources) {
      if (each.policy == resources.front().policy) continue;
      base::log(base::LogLevel::warning, "ranks of this node have different DDP_BIND: {} and {}; {} is used",
                resources.front().policy, each.policy, resources.front().policy);
      break;
    }
    PlacementRequest request{.num_ranks = static_cast<int>(local_ranks.size()),
                             .policy = parse_bind_policy(resources.front().policy),
                             .allowed = {},
                             .gpus = topology::gpus_of_ranks(*topology, resources)};
    for (const topology::RankResources& each : resources) request.allowed.push_back(each.cpus);
    const std::vector<Placement> placements = place(*topology, request);
    const auto local_rank =
        static_cast<std::size_t>(std::find(local_ranks.begin(), local_ranks.end(), rank) - local_ranks.begin());
    const Placement& own = placements.at(local_rank);
    const Binding binding = Binding::from(*topology, own);
    for (const std::string& remark : binding.apply()) base::log(base::LogLevel::warning, "{}", remark);
    base::log(base::LogLevel::info, "bound to processors {} by policy {}", binding.cpus.to_string(),
              to_string(request.policy));
    set_environment(topology::derive_settings(*topology, placements, own.local_rank,
                                              {.gpus = topology::GpuVisibility::none,
                                               .bound = true,
                                               .socket_interface = interface.name,
                                               .socket_interface_reason = interface.reason},
                                              environment_));
    return own;
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "this rank is not bound to processors: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace ddp::world
