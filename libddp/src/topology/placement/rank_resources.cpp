#include "topology/placement/rank_resources.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/message.hpp"
#include "topology/inventory/gpu_facts.hpp"
#include "topology/placement/affinity_mask.hpp"

namespace ddp::topology {

std::map<std::string, std::string, std::less<>> device_variables(const base::Environment& environment) {
  constexpr std::array kVariables{"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES",
                                  "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"};
  std::map<std::string, std::string, std::less<>> devices;
  for (const char* name : kVariables) {
    if (auto value = environment.raw(name)) devices.emplace(name, std::move(*value));
  }
  return devices;
}

RankResources resources_of_process(const base::Environment& environment) {
  RankResources own{.cpus = affinity_of(0), .devices = device_variables(environment), .gpus = accessible_gpus("/")};
  take_limits(own, base::CgroupLimits::read());
  return own;
}

void take_limits(RankResources& rank, const base::CgroupLimits& limits) {
  constexpr double kMost = 1 << 20;
  rank.processor_thousandths = static_cast<std::uint64_t>(std::ceil(std::min(limits.processors, kMost) * 1000));
  rank.processors_group = limits.processors_group;
}

std::vector<double> processor_shares(const std::vector<RankResources>& ranks) {
  std::vector<double> shares;
  for (const RankResources& rank : ranks) {
    const auto sharing = std::count_if(ranks.begin(), ranks.end(), [&](const RankResources& other) {
      return other.processor_thousandths > 0 && other.processors_group == rank.processors_group;
    });
    const double limit = static_cast<double>(rank.processor_thousandths) / 1000;
    shares.push_back(sharing > 0 ? limit / static_cast<double>(sharing) : limit);
  }
  return shares;
}

Bytes encode(const RankResources& resources) { return base::encode(resources); }
RankResources decode_resources(std::span<const std::byte> bytes) { return base::decode<RankResources>(bytes); }

}  // namespace ddp::topology
