// What the launcher left to one rank of a node. Ranks exchange it to come to the same placement.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

struct RankResources {
  CpuSet cpus;
  /// CUDA_VISIBLE_DEVICES and its like, those that are set.
  std::map<std::string, std::string, std::less<>> devices;
  /// GPUs whose device files it may use (accessible_gpus()). The same for all ranks: they say no more than the
  /// topology.
  std::vector<PciAddress> gpus = {};
};

/// The variables of @p environment by which a job scheduler or the user tells a rank which GPUs are its own.
std::map<std::string, std::string, std::less<>> device_variables(const base::Environment& environment);

Bytes encode(const RankResources& resources);
/// Throws Error: protocol, invalid_argument (processors).
RankResources decode_resources(std::span<const std::byte> bytes);

}  // namespace ddp::topology
