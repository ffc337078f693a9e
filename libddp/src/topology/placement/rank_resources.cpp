#include "topology/placement/rank_resources.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <new>
#include <utility>

#include "base/errors.hpp"
#include "base/message.hpp"
#include "topology/inventory/gpu_facts.hpp"

namespace ddp::topology {
namespace {

using CpuMask = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

CpuMask new_mask(std::size_t capacity) {
  CpuMask mask{CPU_ALLOC(capacity), [](cpu_set_t* set) { CPU_FREE(set); }};
  if (!mask) throw std::bad_alloc();
  CPU_ZERO_S(CPU_ALLOC_SIZE(capacity), mask.get());
  return mask;
}

/// False if numactl(8), a batch script or the program chose another one.
bool has_default_policy() {
  int mode = MPOL_DEFAULT;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, nullptr, 0UL) != 0 || mode == MPOL_DEFAULT;
}

std::size_t capacity_for(const CpuSet& cpus) {
  const std::vector<int> numbers = cpus.to_vector();
  return numbers.empty() ? 1 : static_cast<std::size_t>(numbers.back()) + 1;
}

}  // namespace

CpuSet affinity_of(pid_t thread) {
  // The kernel refuses a mask smaller than its own.
  for (std::size_t capacity = 1024; capacity <= CpuSet::kLargest + 1; capacity *= 2) {
    const CpuMask mask = new_mask(capacity);
    const std::size_t size_bytes = CPU_ALLOC_SIZE(capacity);
    if (::sched_getaffinity(thread, size_bytes, mask.get()) == 0) {
      CpuSet cpus;
      for (std::size_t cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, mask.get())) cpus.insert(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  throw base::system_error("reading which processors a process may use (sched_getaffinity)", errno);
}

int preferred_memory_of_this_thread() {
  int mode = MPOL_DEFAULT;
  AffinityMask::NodeMask nodes{};
  // Forbidden in many containers; what is not known is then said to be the kernel's own policy.
  if (::syscall(SYS_get_mempolicy, &mode, nodes.data(), AffinityMask::kMostNodes, nullptr, 0UL) != 0) return -1;
  if (mode != MPOL_PREFERRED) return -1;
  for (std::size_t node = 0; node < AffinityMask::kMostNodes; ++node) {
    if ((nodes[node / AffinityMask::kWordBits] >> (node % AffinityMask::kWordBits) & 1U) != 0) {
      return static_cast<int>(node);
    }
  }
  return -1;
}

AffinityMask::AffinityMask(const Binding& binding)
    : cpus_(new_mask(capacity_for(binding.cpus))),
      size_bytes_(CPU_ALLOC_SIZE(capacity_for(binding.cpus))),
      scratch_(new_mask(kMostCpus)),
      prefers_node_(binding.preferred_memory >= 0 && static_cast<std::size_t>(binding.preferred_memory) < kMostNodes &&
                    has_default_policy()) {
  for (const int cpu : binding.cpus.to_vector()) CPU_SET_S(static_cast<std::size_t>(cpu), size_bytes_, cpus_.get());
  if (!prefers_node_) return;
  const auto node = static_cast<std::size_t>(binding.preferred_memory);
  nodes_.at(node / kWordBits) |= 1UL << (node % kWordBits);
}

bool AffinityMask::bind(pid_t thread) const noexcept {
  return ::sched_setaffinity(thread, size_bytes_, cpus_.get()) == 0;
}

bool AffinityMask::is_bound() const noexcept {
  const std::size_t scratch_bytes = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(scratch_bytes, scratch_.get());
  if (::sched_getaffinity(0, scratch_bytes, scratch_.get()) != 0) return false;
  for (std::size_t cpu = 0; cpu < kMostCpus; ++cpu) {
    const bool wanted = cpu < 8 * size_bytes_ && CPU_ISSET_S(cpu, size_bytes_, cpus_.get());
    if (wanted != static_cast<bool>(CPU_ISSET_S(cpu, scratch_bytes, scratch_.get()))) return false;
  }
  return true;
}

bool AffinityMask::prefer_memory() const noexcept {
  if (!prefers_node_) return true;
  // The kernel reads one bit less than it is told (set_mempolicy(2), BUGS).
  return ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes_.data(), kMostNodes + 1) == 0;
}

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
