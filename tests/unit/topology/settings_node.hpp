// A node put together by hand, and what derive_settings() says of it.
#pragma once

#include <ddp/topology.hpp>

#include "topology/placement/settings.hpp"

namespace ddp::topology::settings_test {

using Variables = std::map<std::string, std::string, std::less<>>;

/// A node as the tests want it, with one rank for each entry of rank_gpus.
struct Node {
  Topology::Parts parts;
  std::vector<Placement> placements;
  SettingsOptions options;
  Variables environment;

  Node() {
    parts.numa_nodes.push_back({.os_index = 0, .package = -1, .cpus = CpuSet::parse("0-15"), .memory_bytes = 0});
    for (int i = 0; i < 8; ++i) {  // two hardware threads each
      parts.cores.push_back({.numa_node = 0, .package = -1, .cpus = CpuSet{std::vector<int>{i, i + 8}}});
    }
    options.interface = {.name = "ib0", .reason = "it routes to the other nodes"};
    add_interface("eth0");
    add_interface("ib0");
  }

  void add_interface(const std::string& name) {
    NetworkInterface interface;
    interface.name = name;
    parts.interfaces.push_back(interface);
  }
  Gpu& add_gpu(Vendor vendor) {
    Gpu gpu;
    gpu.index = static_cast<int>(parts.gpus.size());
    gpu.vendor = vendor;
    gpu.pci.bus = static_cast<std::uint8_t>(gpu.index + 1);
    gpu.uuid = "GPU-" + std::to_string(gpu.index);
    parts.gpus.push_back(gpu);
    return parts.gpus.back();
  }
  Nic& add_nic(const std::string& rdma_device, double gbps = 400, const std::string& state = "ACTIVE",
               const std::string& layer = "InfiniBand") {
    Nic nic;
    nic.index = static_cast<int>(parts.nics.size());
    nic.rdma_device = rdma_device;
    nic.fabric = true;
    nic.rate_gbps = gbps;
    if (!state.empty()) nic.ports.push_back({.number = 1, .state = state, .link_layer = layer, .rate_gbps = gbps});
    nic.usable = state != "DOWN";
    parts.nics.push_back(nic);
    return parts.nics.back();
  }
  Placement& add_rank(int gpu = -1, int nic = -1) {
    Placement rank;
    rank.local_rank = static_cast<int>(placements.size());
    if (gpu >= 0) rank.gpu = gpu;
    if (nic >= 0) rank.nics = {nic};
    rank.cpus = CpuSet{std::vector<int>{rank.local_rank, rank.local_rank + 8}};
    rank.num_cores = 1;
    placements.push_back(rank);
    return placements.back();
  }
  std::vector<Setting> settings(int local_rank = 0) const {
    return derive_settings(Topology::from_parts(parts), placements, local_rank, options,
                           base::Environment{environment});
  }
};

inline const Setting* find(const std::vector<Setting>& settings, std::string_view name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const auto& one) { return one.name == name; });
  return found == settings.end() ? nullptr : &*found;
}

/// The value of a variable that libddp sets; "-" if it is not set, "(user) x" if it is the user's.
inline std::string value_of(const std::vector<Setting>& settings, std::string_view name) {
  const Setting* setting = find(settings, name);
  if (setting == nullptr) return "-";
  EXPECT_THAT(setting->reason, ::testing::Not(::testing::IsEmpty()));
  return (setting->by_user ? "(user) " : "") + setting->value;
}

/// What is said against the user's value of a variable.
inline std::string conflict(const Node& node, std::string_view name) {
  const auto settings = node.settings();
  const Setting* setting = find(settings, name);
  if (setting == nullptr || !setting->by_user) return "it was not kept";
  EXPECT_EQ(setting->value, node.environment.at(std::string(name)));
  return setting->conflict;
}

}  // namespace ddp::topology::settings_test
