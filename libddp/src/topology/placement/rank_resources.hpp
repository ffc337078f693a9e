// What the launcher left to one rank of a node. Ranks exchange it to come to the same placement.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/bytes.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>

#include "base/cgroup_limits.hpp"
#include "base/env_table.hpp"
#include "topology/network/message_values.hpp"

namespace ddp::topology {

// The system calls behind Binding. Memory is allocated beforehand, so they may be called between fork and exec.

/// Processors that a thread may run on (sched_getaffinity(2)). @param thread 0: the calling one. Throws Error(system).
CpuSet affinity_of(pid_t thread);

/// NUMA node that the calling thread's memory policy prefers; -1: another policy, or unknown.
int preferred_memory_of_this_thread();

/// A Binding in the kernel's form. The setters are async-signal-safe and leave errno when they return false.
class AffinityMask {
 public:
  explicit AffinityMask(const Binding& binding);

  /// sched_setaffinity(2). @param thread 0: the calling one.
  bool bind(pid_t thread) const noexcept;
  /// Whether the calling thread has exactly these processors now. Not thread-safe.
  bool is_bound() const noexcept;
  /// set_mempolicy(2) with MPOL_PREFERRED for the calling thread and what it starts. Does nothing without a node, or if
  /// the thread had a policy other than the default when this object was made (numactl).
  bool prefer_memory() const noexcept;

 private:
  static constexpr std::size_t kMostCpus = CpuSet::kLargest + 1;
  // More NUMA nodes than any kernel has (CONFIG_NODES_SHIFT is at most 10).
  static constexpr std::size_t kMostNodes = 1024;
  static constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
  friend int preferred_memory_of_this_thread();
  using NodeMask = std::array<unsigned long, kMostNodes / kWordBits>;

  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> cpus_;
  std::size_t size_bytes_;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> scratch_;
  NodeMask nodes_{};
  bool prefers_node_;
};

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
