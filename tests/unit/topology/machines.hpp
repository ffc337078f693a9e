// Machines put together by hand, whose best placements can be told by looking at them.
#pragma once

#include <ddp/topology.hpp>

namespace ddp::test {

/// Sizes of a machine without devices.
struct Processors {
  int packages = 1;
  int numa_nodes = 1;  ///< in each package; 0: the machine tells of none
  int cores = 4;       ///< in each NUMA node (or package, where there are none)
  int threads = 1;     ///< of each core; numbered as Linux does on x86: first all cores' first ones
};
Topology::Parts make_processors(const Processors& sizes);

/// Where a device is attached: to a NUMA node, on PCI below the given bridges (host bridge first).
Locality near_numa_node(const Topology::Parts& parts, int numa_node, std::vector<int> bridges = {});
/// A device that is near to a whole package, or (package -1) of which nothing is known.
Locality near_package(const Topology::Parts& parts, int package, std::vector<int> bridges = {});

/// Adds a visible NVIDIA GPU behind those that are there.
Gpu& add_gpu(Topology::Parts& parts, Locality locality);
/// Adds a usable InfiniBand NIC, 400 Gbit/s: "ib0 (mlx5_0)", "ib1 (mlx5_1)", ...
Nic& add_nic(Topology::Parts& parts, Locality locality);
/// Adds a usable Ethernet NIC without RDMA.
Nic& add_ethernet(Topology::Parts& parts, Locality locality, const std::string& name, double rate_gbps);

/// 2 packages with 2 NUMA nodes each, 8 cores of 2 threads in each NUMA node: core i has processors i and i + 32. Each
/// NUMA node i has a PCI switch with the GPUs and NICs 2i and 2i + 1.
Topology::Parts eight_gpu_machine();

/// 2 packages with 1 NUMA node of 8 cores and 1 NIC each, no GPU.
Topology::Parts dual_rail_machine();

/// 2 packages with 2 NUMA nodes each, 4 cores of 2 threads in each: core i has processors i and i + 16. One NIC, near
/// NUMA node 0; no GPU.
Topology::Parts cpu_machine();

/// 2 packages with 1 NUMA node of 6 cores each. GPUs 0, 1, 2 and the only NIC on package 0, GPU 3 on package 1.
Topology::Parts asymmetric_machine();

/// A workstation: 1 NUMA node with 6 cores, 2 GPUs, 1 Ethernet NIC.
Topology::Parts one_numa_machine();

/// Anything that from_parts() accepts: 1 to 4 packages or none, 0 to 4 NUMA nodes in each, some of them without cores,
/// unequal ones, shuffled processor numbers, devices that are hidden, unusable, slow or nowhere in particular. The same
/// on every computer for the same seed.
Topology::Parts random_machine(std::uint32_t seed);

}  // namespace ddp::test
