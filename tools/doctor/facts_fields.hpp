// The fields of the facts as they are sent to rank 0.
#pragma once

#include "base/message_fields.hpp"
#include "doctor/facts.hpp"
#include "topology/network/message_values.hpp"

namespace ddp {

constexpr auto description(const InterfaceAddress*) {
  using T = InterfaceAddress;
  return base::describe({"address"}, base::fields<&T::address, &T::prefix_length, &T::ipv6>());
}

}  // namespace ddp

namespace ddp::topology {

constexpr auto description(const GpuHealth*) {
  return base::describe({"health of a GPU"},
                        base::fields<&GpuHealth::name, &GpuHealth::uncorrected_errors, &GpuHealth::remap_pending,
                                     &GpuHealth::remap_failed, &GpuHealth::slowed_by, &GpuHealth::persistent,
                                     &GpuHealth::fabric_error, &GpuHealth::cluster, &GpuHealth::clique>(),
                        base::fields<&GpuHealth::fabric>(base::kUpTo<FabricState::completed>));
}

}  // namespace ddp::topology

namespace ddp::tools::doctor {

constexpr auto description(const InterfaceFacts*) {
  return base::describe(
      {"interface"},
      base::fields<&InterfaceFacts::name, &InterfaceFacts::running, &InterfaceFacts::mtu, &InterfaceFacts::rate_mbps,
                   &InterfaceFacts::arp_ignore, &InterfaceFacts::arp_announce, &InterfaceFacts::addresses>(),
      base::fields<&InterfaceFacts::kind>(base::kUpTo<InterfaceKind::other>));
}
constexpr auto description(const GidFacts*) {
  return base::describe({"GID"}, base::fields<&GidFacts::index, &GidFacts::type, &GidFacts::gid>());
}
constexpr auto description(const RdmaPortFacts*) {
  using T = RdmaPortFacts;
  return base::describe(
      {"RDMA port"},
      base::fields<&T::device, &T::port, &T::state, &T::link_layer, &T::gids_known, &T::gids, &T::gids_cut, &T::subnet,
                   &T::pkeys, &T::rate_mbps, &T::pci, &T::board, &T::firmware>());
}
constexpr auto description(const GpuFacts*) {
  return base::describe({"GPU"}, base::fields<&GpuFacts::name, &GpuFacts::numa_node, &GpuFacts::cpus>(),
                        base::fields<&GpuFacts::paths>(base::kUpTo<Path::unknown>));
}
constexpr auto description(const PluginFacts*) {
  return base::describe({"plugin"}, base::fields<&PluginFacts::variable, &PluginFacts::path, &PluginFacts::digest,
                                                 &PluginFacts::network, &PluginFacts::by_default>());
}
constexpr auto description(const ProbeListener*) {
  return base::describe({"listener"},
                        base::fields<&ProbeListener::interface, &ProbeListener::address, &ProbeListener::mtu,
                                     &ProbeListener::rate_mbps, &ProbeListener::tcp_port, &ProbeListener::udp_port>());
}
constexpr auto description(const XidFacts*) {
  return base::describe({"Xid"}, base::fields<&XidFacts::gpu, &XidFacts::number, &XidFacts::times, &XidFacts::age_s>());
}
constexpr auto description(const NameFacts*) {
  return base::describe({"name"}, base::fields<&NameFacts::addresses, &NameFacts::unanswered>());
}
constexpr auto description(const NodeFacts*) {
  using T = NodeFacts;
  return base::describe(
      {"node"},
      base::fields<&T::boot_id, &T::kernel, &T::own_name, &T::master, &T::master_port_taken, &T::shm_bytes,
                   &T::shm_free_bytes, &T::interfaces, &T::rdma, &T::candidates, &T::candidate_facts,
                   &T::candidates_failure, &T::port_low, &T::port_high, &T::iommu, &T::acs_ports, &T::peer_memory,
                   &T::dma_buf, &T::nvidia_gpus, &T::nvidia_driver, &T::nvswitches, &T::fabric_manager_version,
                   &T::imex_nodes, &T::gpus, &T::xids, &T::gateways, &T::libfabric_device, &T::numa, &T::removes_ipc,
                   &T::foreign_ras_port, &T::slurm_version, &T::listeners, &T::token>(),
      base::fields<&T::fabric_manager>(base::kUpTo<FabricManager::absent>));
}
constexpr auto description(const RankFacts*) {
  using T = RankFacts;
  return base::describe(
      {.name = "rank's facts",
       .version = 3,
       .most_bytes = kLargestFactsBytes,
       .shorten = "is an environment variable extremely long?"},
      base::fields<&T::failure, &T::rank, &T::local_rank, &T::node, &T::host, &T::version, &T::environment,
                   &T::pmix_version, &T::memlock_bytes, &T::open_files, &T::stack_unlimited, &T::cpus, &T::memory_nodes,
                   &T::cores, &T::cpu_quota, &T::pids_limit, &T::namespaces, &T::shm_device, &T::gpus, &T::gpu_models,
                   &T::gpus_of_node, &T::gpus_allowed, &T::nvidia_caps, &T::imex_channel, &T::verbs_problem,
                   &T::plugins, &T::nccl_copies, &T::libfabric, &T::missing_files, &T::gpu_health, &T::of_node>());
}
constexpr auto description(const ProbeResult*) {
  return base::describe({"probe"},
                        base::fields<&ProbeResult::to_node, &ProbeResult::interface, &ProbeResult::address,
                                     &ProbeResult::packet_bytes, &ProbeResult::rate_mbps, &ProbeResult::path_mbps>(),
                        base::fields<&ProbeResult::end>(base::kUpTo<ProbeEnd::unreachable>),
                        base::fields<&ProbeResult::packet>(base::kUpTo<PacketEnd::lost>));
}
constexpr auto description(const ProbeReport*) {
  return base::describe({.name = "report of a node's probes", .version = 3, .most_bytes = kLargestFactsBytes},
                        base::fields<&ProbeReport::clock_ms, &ProbeReport::results>());
}

}  // namespace ddp::tools::doctor
