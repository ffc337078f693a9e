// What the launcher left to one rank of a node. Ranks exchange it to come to the same placement.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>

#include "base/cgroup_limits.hpp"
#include "base/env_table.hpp"
#include "topology/network/message_values.hpp"

namespace ddp::topology {

struct RankResources {
  CpuSet cpus{};
  /// CUDA_VISIBLE_DEVICES and its like, those that are set.
  std::map<std::string, std::string, std::less<>> devices{};
  /// GPUs whose device files it may use (accessible_gpus()). The same for all ranks: they say no more than the
  /// topology.
  std::vector<PciAddress> gpus = {};
  /// Processors' time that its cgroups allow, in thousandths of a processor; 0: no limit.
  std::uint64_t processor_thousandths = 0;
  std::string processors_group = {};  ///< the cgroup whose processes share that
};
constexpr auto description(const RankResources*) {
  return base::describe({"rank's resources", 1},
                        base::fields<&RankResources::cpus, &RankResources::devices, &RankResources::gpus,
                                     &RankResources::processor_thousandths, &RankResources::processors_group>());
}

/// Of this process: its mask, @p environment, GPUs that it may open, cgroups.
RankResources resources_of_process(const base::Environment& environment);

/// The processors' time for each of @p ranks of a node: those in one cgroup share its limit. 0: no limit.
std::vector<double> processor_shares(const std::vector<RankResources>& ranks);

/// @p limits in the words of RankResources.
void take_limits(RankResources& rank, const base::CgroupLimits& limits);

/// The variables of @p environment by which a job scheduler or the user tells a rank which GPUs are its own.
std::map<std::string, std::string, std::less<>> device_variables(const base::Environment& environment);

Bytes encode(const RankResources& resources);
/// Throws Error(protocol).
RankResources decode_resources(std::span<const std::byte> bytes);

}  // namespace ddp::topology
