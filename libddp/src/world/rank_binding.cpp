#include "world/rank_binding.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/byte_stream.hpp"
#include "base/log.hpp"
#include "topology/gpu_assignment.hpp"
#include "topology/settings.hpp"
#include "world/world_state.hpp"

namespace ddp::world {
namespace {

// How a job scheduler or the user tells each rank which GPUs are its own.
constexpr std::array kDeviceVariables{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                      "ZE_AFFINITY_MASK"};
constexpr std::array kReadByRuntimesAtStart{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES",
                                            "ZE_AFFINITY_MASK"};

/// What one rank may use.
struct RankResources {
  std::string policy;  ///< its DDP_BIND: ranks that differ would place each other differently
  CpuSet cpus;
  std::map<std::string, std::string, std::less<>> devices;  ///< of kDeviceVariables, those that are set
};

Bytes encode(const RankResources& resources) {
  base::ByteWriter writer;
  writer.text(resources.policy)
      .text(resources.cpus.to_string())
      .integer(static_cast<std::uint8_t>(resources.devices.size()));
  for (const auto& [name, value] : resources.devices) writer.text(name).text(value);
  return std::move(writer).bytes();
}

RankResources decode(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "rank's resources");
  RankResources resources;
  resources.policy = reader.text();
  resources.cpus = CpuSet::parse(reader.text());
  for (auto left = reader.integer<std::uint8_t>(); left > 0; --left) {
    std::string name = reader.text();
    resources.devices.emplace(std::move(name), reader.text());
  }
  reader.expect_end();
  return resources;
}

RankResources own_resources(const base::Environment& environment) {
  RankResources resources{.policy = environment.text("DDP_BIND"), .cpus = Binding::current().cpus, .devices = {}};
  for (const char* name : kDeviceVariables) {
    if (auto value = environment.raw(name)) resources.devices.emplace(name, std::move(*value));
  }
  return resources;
}

/// The GPUs of the node in the order of the local ranks. Where ranks were given different ones, each has its first.
/// Without any list, and with more GPUs than ranks, they are in the order of their numbers: nothing tells the program
/// to use others than that of its local rank.
std::optional<std::vector<int>> gpus_of(const Topology& topology, const std::vector<RankResources>& ranks) {
  std::vector<int> firsts;
  std::optional<std::vector<int>> common;
  for (const RankResources& resources : ranks) {
    auto named = topology::gpus_named_by(topology, base::Environment{resources.devices});
    if (!named) {
      std::vector<int> all = topology::usable_gpus(topology);
      return all.size() > ranks.size() ? std::optional{std::move(all)} : std::nullopt;
    }
    if (named->empty()) return named;
    firsts.push_back(named->front());
    common = std::move(named);
  }
  const bool same = std::all_of(ranks.begin(), ranks.end(),
                                [&](const RankResources& each) { return each.devices == ranks.front().devices; });
  return same ? common : firsts;
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
  store.put_on_node(key + ".resources", encode(own_resources(environment_)));
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
    std::vector<RankResources> resources;
    std::optional<Topology> topology;
    if (alone_) {
      topology = Topology::live();
      resources.push_back(own_resources(environment_));
    } else {
      const Bytes xml = store.get_on_node(local_ranks.front(), key + ".topology", deadline);
      topology = Topology::from_xml({reinterpret_cast<const char*>(xml.data()), xml.size()},
                                    "what this node's first rank read");
      for (const int each : local_ranks) {
        resources.push_back(decode(store.get_on_node(each, key + ".resources", deadline)));
      }
    }
    for (const RankResources& each : resources) {
      if (each.policy == resources.front().policy) continue;
      base::log(base::LogLevel::warning, "ranks of this node have different DDP_BIND: {} and {}; {} is used",
                resources.front().policy, each.policy, resources.front().policy);
      break;
    }
    PlacementRequest request{.num_ranks = static_cast<int>(local_ranks.size()),
                             .policy = parse_bind_policy(resources.front().policy),
                             .allowed = {},
                             .gpus = gpus_of(*topology, resources)};
    for (const RankResources& each : resources) request.allowed.push_back(each.cpus);
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
