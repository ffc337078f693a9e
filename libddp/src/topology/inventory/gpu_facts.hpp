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

}  // namespace ddp::topology
