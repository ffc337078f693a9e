// Machines and placements in one line each, so that a test says what it expects of a machine in a table.
#pragma once

#include <fmt/ranges.h>

#include <ddp/topology.hpp>

#include "support/checkout.hpp"

namespace ddp::topology {

/// Where recordings of real machines are, which are not part of the sources; nothing if they are not there.
inline std::optional<std::filesystem::path> recorded_machines() {
  const char* const given = std::getenv("DDP_RECORDED_TOPOLOGIES");
  const auto folder = given != nullptr ? std::filesystem::path(given)
                                       : ddp::test::source_root().parent_path() / "shared" / "topologies";
  return std::filesystem::is_directory(folder) ? std::optional(folder) : std::nullopt;
}

/// "2 packages, 4 NUMA nodes, 16 cores, 32 processors, 8 GPUs, 9 NICs"
inline std::string inventory(const Topology& machine) {
  return fmt::format("{} packages, {} NUMA nodes, {} cores, {} processors, {} GPUs, {} NICs", machine.packages().size(),
                     machine.numa_nodes().size(), machine.cores().size(), machine.cpus().count(), machine.gpus().size(),
                     machine.nics().size());
}

/// "0000:04:00.0" of each GPU.
inline std::vector<std::string> gpu_addresses(const Topology& machine) {
  std::vector<std::string> addresses;
  for (const Gpu& gpu : machine.gpus()) addresses.push_back(gpu.pci.to_string());
  return addresses;
}

/// The names of the NICs that ranks may use.
inline std::vector<std::string> usable_nics(const Topology& machine) {
  std::vector<std::string> names;
  for (const Nic& nic : machine.nics()) {
    if (nic.usable) names.push_back(nic.name());
  }
  return names;
}

inline const Nic& nic_named(const Topology& machine, std::string_view name) {
  for (const Nic& nic : machine.nics()) {
    if (nic.name() == name || nic.interface == name || nic.rdma_device == name) return nic;
  }
  throw std::runtime_error(fmt::format("no NIC {}", name));
}

/// "PIX"; "SYS" within a package and "SYS*" between packages.
inline std::string words(const Distance& distance) {
  return std::string(to_string(distance.path)) + (distance.other_package ? "*" : "");
}

/// Distances from a GPU to all GPUs: "X PIX NODE SYS*".
inline std::string distances_from(const Topology& machine, std::size_t gpu) {
  std::vector<std::string> row;
  for (const Gpu& other : machine.gpus()) row.push_back(words(machine.distance(machine.gpus().at(gpu), other)));
  return fmt::format("{}", fmt::join(row, " "));
}

inline std::string distance_to(const Topology& machine, std::size_t gpu, const std::string& nic) {
  return words(machine.distance(machine.gpus().at(gpu), nic_named(machine, nic)));
}

/// "GPU 3, ib2 (mlx5_2), 4 cores 8-11,40-43"; "shared" behind what other ranks have, too.
inline std::string summary(const Topology& machine, const Placement& rank) {
  return fmt::format(
      "{}{}, {}, {} {} {}{}", rank.gpu ? fmt::format("GPU {}", *rank.gpu) : "no GPU", rank.gpu_shared ? " shared" : "",
      rank.nics.empty() ? "no NIC" : machine.nics().at(static_cast<std::size_t>(rank.nics[0])).name(), rank.num_cores,
      rank.num_cores == 1 ? "core" : "cores", rank.cpus.to_string(), rank.cores_shared ? " shared" : "");
}

inline std::vector<std::string> summaries(const Topology& machine, int num_ranks,
                                          BindPolicy policy = BindPolicy::numa) {
  PlacementRequest request;
  request.num_ranks = num_ranks;
  request.policy = policy;
  std::vector<std::string> lines;
  for (const Placement& rank : place(machine, request)) lines.push_back(summary(machine, rank));
  return lines;
}

}  // namespace ddp::topology
