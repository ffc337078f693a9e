// The system calls behind Binding. Memory is allocated beforehand, so they may be called between fork and exec.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <memory>

#include <ddp/binding.hpp>

namespace ddp::topology {

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

}  // namespace ddp::topology
