// Machines and reports put together by hand, whose properties can be seen at a glance.
#pragma once

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "topo/report_model.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::tools::test {

inline constexpr int kCoresPerNode = 4;

/// Two packages with one NUMA node each. Node n has cores with the PUs 4n+i and 8+4n+i, two GPUs and one adapter behind
/// a switch. A third adapter, on node 0 without a switch, is down.
inline Topology::Parts two_package_parts() {
  Topology::Parts parts;
  parts.source = "a sample";
  for (int node = 0; node < 2; ++node) {
    CpuSet cpus;
    for (int i = 0; i < kCoresPerNode; ++i) {
      const CpuSet pair{{node * kCoresPerNode + i, 8 + node * kCoresPerNode + i}};
      parts.cores.push_back({.numa_node = node, .package = node, .cpus = pair});
      cpus = cpus | pair;
    }
    parts.packages.push_back({.os_index = node, .cpus = cpus});
    parts.numa_nodes.push_back({.os_index = node, .package = node, .cpus = cpus, .memory_bytes = 64ULL << 30U});
    const auto bus = static_cast<std::uint8_t>(0x10 * (node + 1));
    const auto attached = [&](std::vector<int> bridges) {
      return Locality{.package = node, .numa_node = node, .cpus = cpus, .bridges = std::move(bridges)};
    };
    for (int i = 0; i < 2; ++i) {
      Gpu gpu;
      gpu.index = node * 2 + i;
      gpu.pci = {.domain = 0, .bus = static_cast<std::uint8_t>(bus + i), .device = 0, .function = 0};
      gpu.vendor = Vendor::nvidia;
      gpu.model = "NVIDIA H200";
      gpu.locality = attached({10 * node, 10 * node + 1, 10 * node + 2 + i});
      parts.gpus.push_back(gpu);
    }
    Nic nic;
    nic.interface = "ib" + std::to_string(node);
    nic.rdma_device = "mlx5_" + std::to_string(node);
    nic.pci = PciAddress{.domain = 0, .bus = static_cast<std::uint8_t>(bus + 2), .device = 0, .function = 0};
    nic.model = "MT2910 Family [ConnectX-7]";
    nic.rate_gbps = 400;
    nic.fabric = true;
    nic.locality = attached({10 * node, 10 * node + 1, 10 * node + 4});
    parts.nics.push_back(nic);
    if (node == 0) {
      nic.interface = "eth0";
      nic.rdma_device.clear();
      nic.pci->bus = 0x18;
      nic.model = "I350";
      nic.rate_gbps = 0;
      nic.fabric = false;
      nic.usable = false;
      nic.unusable_reason = "it is down";
      nic.locality = attached({0});
      parts.nics.push_back(nic);
    }
  }
  for (std::size_t i = 0; i < parts.nics.size(); ++i) parts.nics[i].index = static_cast<int>(i);
  return parts;
}

inline Topology two_packages() { return Topology::from_parts(two_package_parts()); }

/// Four cores on one NUMA node, and nothing else.
inline Topology four_cores() {
  Topology::Parts parts;
  parts.source = "four cores";
  const CpuSet all{{0, 1, 2, 3}};
  parts.packages.push_back({.os_index = 0, .cpus = all});
  parts.numa_nodes.push_back({.os_index = 0, .package = 0, .cpus = all, .memory_bytes = 0});
  for (int i = 0; i < 4; ++i) parts.cores.push_back({.numa_node = 0, .package = 0, .cpus = CpuSet{{i}}});
  return Topology::from_parts(std::move(parts));
}

/// The row of local rank i on two_packages(): GPU i, two cores near to it, and a setting of its own.
inline RankRow sample_row(int local_rank) {
  const int node = local_rank / 2;
  const int core = node * kCoresPerNode + local_rank % 2 * 2;
  RankRow row;
  row.local_rank = local_rank;
  row.ranks = {{.rank = local_rank, .host = "n1"}};
  row.placement.local_rank = local_rank;
  row.placement.gpu = local_rank;
  row.placement.nics = {node == 0 ? 0 : 2};
  row.placement.numa_nodes = {node};
  row.placement.cpus = CpuSet{{core, core + 1, core + 8, core + 9}};
  row.placement.num_cores = 2;
  row.placement.decisions = {{.subject = "NIC",
                              .chosen = "ib" + std::to_string(node),
                              .reason = "It is the nearest.",
                              .alternatives = {"ib" + std::to_string(1 - node) + ": SYS, further than PIX"}}};
  row.settings = {{.name = "NCCL_IB_HCA",
                   .value = "=mlx5_0:1,mlx5_1:1",
                   .reason = "these are fit",
                   .by_user = false,
                   .conflict = ""},
                  {.name = "OMP_NUM_THREADS",
                   .value = local_rank == 3 ? "99" : "2",
                   .reason = local_rank == 3 ? "the environment has it" : "this rank has 2 cores",
                   .by_user = local_rank == 3,
                   .conflict = local_rank == 3 ? "this rank has only 4 hardware threads" : ""}};
  return row;
}

/// What four ranks on two_packages() would get.
inline Report sample_report() {
  Report report;
  NodeKind kind{.topology = two_packages(), .hosts = {"n1"}, .allowed = two_packages().cpus()};
  for (int local_rank = 0; local_rank < 4; ++local_rank) kind.rows.push_back(sample_row(local_rank));
  report.kinds.push_back(std::move(kind));
  return report;
}

/// A job with four ranks on each of three equal nodes, of which local rank 0 is not bound and lacks a variable.
inline Report sample_job() {
  Report report = sample_report();
  report.job = JobDescription{.launcher = "pmix", .reason = "PMIX_NAMESPACE is set", .world_size = 12};
  NodeKind& kind = report.kinds.front();
  kind.hosts = {"n1", "n2", "n3"};
  for (RankRow& row : kind.rows) {
    row.ranks.clear();
    for (int node = 0; node < 3; ++node) {
      row.ranks.push_back({.rank = node * 4 + row.local_rank,
                           .host = "n" + std::to_string(node + 1),
                           .interface = {"ib0", "10.0.0." + std::to_string(node + 1), "it routes to the others"}});
    }
    const bool bound = row.local_rank != 0;
    const CpuSet mask = bound ? row.placement.cpus : kind.allowed;
    row.actual = ActualBinding{.given = mask,
                               .binding = {.cpus = mask, .preferred_memory = bound ? row.local_rank / 2 : -1},
                               .state = bound ? BindingState::as_placed : BindingState::not_bound,
                               .sentence = bound ? "bound as placed" : "not bound"};
    for (SettingRow& setting : row.settings) {
      setting.by_user = false;
      if (bound) setting.actual = setting.value;
    }
  }
  return report;
}

using ddp::test::error_of;

}  // namespace ddp::tools::test
