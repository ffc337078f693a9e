// Binds a process to cores and memory, and reads back what it is bound to.
#pragma once

#include <string>
#include <vector>

#include <ddp/cpu_set.hpp>

namespace ddp {

class Topology;
struct Placement;

/// Processors and preferred memory of a process.
struct Binding {
  CpuSet cpus{};  ///< processors on which its threads may run
  /// Operating-system number of the NUMA node that memory is taken from first; -1: the node where the thread runs.
  int preferred_memory = -1;

  /// The calling thread's binding: sched_getaffinity(2) and get_mempolicy(2). Throws Error(system).
  static Binding current();

  /// What @p placement asks for on @p topology. Preferred memory is the cores' NUMA node if they share one, else -1.
  static Binding from(const Topology& topology, const Placement& placement);

  /// Binds all threads of this process that exist now, and so those that they start, and sets the calling thread's
  /// memory policy (MPOL_PREFERRED), which threads started later inherit; a policy set from
  /// outside (numactl) stays. Reads the mask back.
  /// @return one sentence for each request that was not granted in full: a mask that the kernel narrowed (cpuset
  /// cgroup), a memory policy that a container forbids. Throws Error(system) if the mask cannot be set at all, and
  /// Error(invalid_argument) for an empty one.
  std::vector<std::string> apply() const;

  friend bool operator==(const Binding&, const Binding&) = default;
};

}  // namespace ddp
