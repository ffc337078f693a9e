// GPUs as the kernel shows them: PCI functions with their drivers and device files. Needs neither NVML nor hwloc.
#pragma once

#include <filesystem>
#include <vector>

#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

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
