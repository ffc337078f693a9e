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

/// GPUs of NVIDIA, AMD and Intel below @p root ("/"): PCI display controllers (class 03), and AMD's accelerators (class
/// 12: MI300X). An Intel one of VGA class is left out unless it has a render node and is not on PCI bus 0, where the
/// graphics of Intel's processors are.
///
/// A GPU counts as visible if NVML (@p listed) lists it or, where NVML cannot be asked and for other vendors, if its
/// device file may be read and written. The file is not opened, which may wake a GPU and take seconds.
GpuFacts collect_gpu_facts(const std::filesystem::path& root, const std::optional<std::vector<NvmlGpu>>& listed);

}  // namespace ddp::topology
