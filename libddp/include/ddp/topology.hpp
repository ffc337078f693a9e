// The machine: packages, NUMA nodes, cores, GPUs, NICs, and the distances among them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>
#include <ddp/placement.hpp>

namespace ddp {

/// A processor package (socket).
struct Package {
  int os_index = -1;  ///< the operating system's number; -1: unknown
  CpuSet cpus{};      ///< its processors
};

/// Memory, and the processors near it.
struct NumaNode {
  int os_index = 0;                     ///< the operating system's number
  int package = -1;                     ///< index in Topology::packages(); -1 if it spans several
  CpuSet cpus{};                        ///< may be empty: memory of a GPU, or without processors
  unsigned long long memory_bytes = 0;  ///< 0: unknown
};

/// A physical core.
struct Core {
  int numa_node = -1;  ///< index in Topology::numa_nodes(); the first of several near ones
  int package = -1;    ///< index in Topology::packages(); -1: unknown
  CpuSet cpus{};       ///< its hardware threads
};

/// An inventory of one machine. A value: copyable, immutable, and independent of hwloc once made.
/// Thread-safety: const members from any thread.
class Topology {
 public:
  /// This machine, read with hwloc 2.x or 3, /sys and, if a driver is installed, NVML. Takes some 10 ms, more if a GPU
  /// driver must wake up. Processors: all that the operating system shows and the cgroup allows.
  /// Throws Error(system).
  static Topology live();

  /// A file written by to_xml(), by lstopo (hwloc 2 or newer), or in NCCL's topology format (root element `system`).
  /// Throws Error: not_found, system (cannot be read), invalid_argument (empty, truncated, not a topology, hwloc 1).
  static Topology from_xml_file(const std::string& path);
  /// The same for text. @param name what messages call it.
  static Topology from_xml(std::string_view xml, std::string_view name = "the given text");

  /// hwloc's synthetic description, for example "pack:2 numa:2 core:8 pu:2". It has no devices.
  /// Throws Error(invalid_argument).
  static Topology synthetic(const std::string& description);

  /// hwloc XML with everything that this object knows, for from_xml() on any machine.
  /// Topologies read from NCCL's format and made by from_parts() have none: throws Error(unavailable).
  const std::string& to_xml() const;

  /// The parts of a Topology, for tests and for formats that hwloc does not read.
  struct Parts {
    std::vector<Package> packages;             ///< other members name them by position
    std::vector<NumaNode> numa_nodes;          ///< likewise
    std::vector<Core> cores;                   ///< at least one
    std::vector<Gpu> gpus;                     ///< by PCI address
    std::vector<Nic> nics;                     ///< by PCI address, then name
    std::vector<NetworkInterface> interfaces;  ///< in the kernel's order
    CpuSet allowed;                            ///< empty: all processors of the cores
    /// Bandwidth of the direct or switched links (NVLink, XGMI) between two GPUs in MB/s, row by row; 0: none. Empty or
    /// gpus.size() squared.
    std::vector<double> gpu_links;
    std::string source;  ///< "this machine", "file x.xml", ...
    std::string xml;     ///< what to_xml() returns; empty: none
  };
  /// Throws Error(invalid_argument) for indices that do not fit together, or when there is no core.
  static Topology from_parts(Parts parts);
  /// A copy without XML, in which only the GPUs of @p visible are visible, with the same indices. @p reason is the
  /// hidden_reason of those that were visible before.
  Topology with_visible_gpus(const std::function<bool(const Gpu&)>& visible, const std::string& reason) const;

  /// @{
  /// What the machine has, in the order of Parts. Valid as long as this object.
  const std::vector<Package>& packages() const noexcept { return parts_.packages; }
  const std::vector<NumaNode>& numa_nodes() const noexcept { return parts_.numa_nodes; }
  const std::vector<Core>& cores() const noexcept { return parts_.cores; }
  const std::vector<Gpu>& gpus() const noexcept { return parts_.gpus; }
  const std::vector<Nic>& nics() const noexcept { return parts_.nics; }
  const std::vector<NetworkInterface>& interfaces() const noexcept { return parts_.interfaces; }
  /// @}
  const CpuSet& cpus() const noexcept { return cpus_; }                   ///< all processors
  const CpuSet& allowed_cpus() const noexcept { return parts_.allowed; }  ///< those that may be used
  const std::string& source() const noexcept { return parts_.source; }    ///< "this machine", "file x.xml", ...

  /// GPU to GPU; NVLink and XGMI count before PCI.
  Distance distance(const Gpu& a, const Gpu& b) const;
  /// GPU to NIC, by PCI and NUMA nodes.
  Distance distance(const Gpu& gpu, const Nic& nic) const { return ddp::distance(gpu.locality, nic.locality); }
  /// GPU or NIC to NUMA node: PHB to its own, SYS to others.
  Distance distance(const Locality& device, const NumaNode& node) const;
  /// Bandwidth of the links between two GPUs in MB/s as hwloc or NVML report it; 0 if there are none.
  double link_bandwidth(const Gpu& a, const Gpu& b) const;

  /// Equal for machines that look the same, whatever their serial numbers, addresses and device states: for grouping
  /// the nodes of a job. Hexadecimal.
  std::string shape() const;

 private:
  explicit Topology(Parts parts);
  Parts parts_;
  CpuSet cpus_;
};

}  // namespace ddp
