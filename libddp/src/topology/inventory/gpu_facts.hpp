// Which GPUs this process may use, and the NVLinks among them: from the kernel, device files and NVML.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

struct NvmlGpu;

struct GpuFacts {
  std::vector<GpuFact> gpus;       ///< by PCI address
  std::vector<GpuLinkFact> links;  ///< both directions
};

/// Those of find_gpu_devices(), and what NVML lists (@p listed). A GPU counts as visible if NVML lists it or, where
/// NVML cannot be asked and for other vendors, if its device file may be read and written.
GpuFacts collect_gpu_facts(const std::filesystem::path& root, const std::optional<std::vector<NvmlGpu>>& listed);

// GPUs as the kernel shows them: PCI functions with their drivers and device files. Needs neither NVML nor hwloc.

struct GpuDevice {
  GpuFact fact;  ///< visible if its device file may be read and written
  bool nvidia = false;
  bool has_driver = false;  ///< one that lets programs compute
};

/// Those below @p root ("/"), by PCI address: display controllers (class 03) of NVIDIA, AMD and Intel, and AMD's
/// accelerators (class 12: MI300X). An Intel one of VGA class is left out unless it has a render node and is not on PCI
/// bus 0, where the graphics of Intel's processors are. Device files are not opened, which may wake a GPU and take
/// seconds.
std::vector<GpuDevice> find_gpu_devices(const std::filesystem::path& root);

/// Addresses of those whose device file this process may read and write. A device cgroup can give each process others:
/// the kernel asks it for access(2) as for open(2).
std::vector<PciAddress> accessible_gpus(const std::filesystem::path& root);

/// Whether a PCI function is an NVSwitch, or another bridge of no standard kind. @param pci its folder in sysfs.
bool is_other_bridge(const std::filesystem::path& pci);

}  // namespace ddp::topology

namespace ddp::topology::pci {

// Numbers by which PCI functions say what they are: base classes (PCI Code and ID Assignment Specification) and
// vendors.

inline constexpr unsigned kNetwork = 0x02;
inline constexpr unsigned kDisplay = 0x03;
inline constexpr unsigned kAccelerator = 0x12;  // AMD MI300X
/// Class and subclass.
inline constexpr unsigned kVga = 0x0300;

inline constexpr unsigned kAmd = 0x1002;
inline constexpr unsigned kNvidia = 0x10de;
inline constexpr unsigned kIntel = 0x8086;

}  // namespace ddp::topology::pci
