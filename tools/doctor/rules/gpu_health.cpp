// Rules on GPUs that do not work as they should, by what NVML tells of them.
#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::int64_t kRecentS = 24 * 3600;

/// Adds what @p fault says of each GPU; empty: nothing. Ranks that see the same one are joined by equal evidence.
template <class Fault>
void each_gpu(const JobFacts& job, Findings& findings, Fault fault) {
  for (const RankFacts& rank : job.ranks) {
    for (const topology::GpuHealth& gpu : rank.gpu_health) {
      if (const std::string text = fault(gpu); !text.empty()) {
        findings.on_rank(rank, fmt::format("{} on {}: {}", gpu.name, rank.host, text));
      }
    }
  }
}

void check_memory(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    if (gpu.remap_failed) return "a faulty row of memory could not be replaced";
    if (gpu.uncorrected_errors == 0) return {};
    return fmt::format("{} uncorrected errors of its memory since the driver was loaded", gpu.uncorrected_errors);
  });
}

void check_xids(const JobFacts& job, Findings& findings) {
  for (const NodeRecord& node : job.nodes) {
    for (const XidFacts& xid : node.facts.xids) {
      if (xid.age_s > kRecentS) continue;
      findings.on_node(node,
                       fmt::format("Xid {} of GPU {}{}, {} ago", xid.number, xid.gpu,
                                   xid.times > 1 ? fmt::format(", {} times", xid.times) : "",
                                   xid.age_s < 3600 ? "less than an hour" : fmt::format("{} h", xid.age_s / 3600)));
    }
  }
}

void check_reset(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    return gpu.remap_pending ? "faulty memory is replaced at the next reset" : "";
  });
}

void check_slowdown(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings, [](const topology::GpuHealth& gpu) -> std::string {
    if ((gpu.slowed_by & topology::kSlowedByPowerBrake) != 0) return "slowed down by the power supply (power brake)";
    if ((gpu.slowed_by & (topology::kSlowedByHeat | topology::kSlowedByHeatOfHardware)) != 0)
      return "slowed down by heat";
    if ((gpu.slowed_by & topology::kSlowedByHardware) != 0) return "slowed down by the hardware (heat or power)";
    return {};
  });
}

void check_persistence(const JobFacts& job, Findings& findings) {
  each_gpu(job, findings,
           [](const topology::GpuHealth& gpu) -> std::string { return gpu.persistent ? "" : "persistence is off"; });
}

constexpr Rule kHealthRules[] = {
    {.id = "gpu-memory",
     .severity = Severity::error,
     .title = "a GPU's memory has uncorrected errors",
     .meaning = "Programs on it end with CUDA_ERROR_ECC_UNCORRECTABLE or Xid 48, 63, 64 or 94, or will again.",
     .fix = "nvidia-smi -q -d ECC,ROW_REMAPPER; reset it (nvidia-smi --gpu-reset -i N), and drain the node if errors "
            "return",
     .check = &check_memory},
    {.id = "gpu-xid",
     .severity = Severity::warning,
     .title = "a GPU has failed within a day",
     .meaning = "NVIDIA's driver has told the kernel's log of a failure that is no program's fault: memory (48, 63, "
                "64, 92, 94, "
                "95, 140), NVLink (74), lost from the bus (79), its own processors (62, 119, 120), start (143).",
     .fix = "nvidia-smi -q; reset it (nvidia-smi --gpu-reset -i N) or the machine, and drain the node if it comes back",
     .check = &check_xids},
    {.id = "gpu-reset",
     .severity = Severity::warning,
     .title = "a GPU waits for a reset",
     .meaning = "Its faulty memory stays in use until then.",
     .fix = "drain the node, then nvidia-smi --gpu-reset -i N",
     .check = &check_reset},
    {.id = "gpu-slow",
     .severity = Severity::warning,
     .title = "a GPU is slowed down",
     .meaning = "All ranks wait for the slowest one at each step.",
     .fix =
         "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at fans, cooling water and power supplies of the node",
     .check = &check_slowdown},
    {.id = "gpu-persistence",
     .severity = Severity::info,
     .title = "the driver is unloaded while no process uses a GPU",
     .meaning = "Programs start seconds later, and its counters of errors are lost each time.",
     .fix = "systemctl enable --now nvidia-persistenced",
     .check = &check_persistence},
};

}  // namespace

std::span<const Rule> gpu_health_rules() { return kHealthRules; }

}  // namespace ddp::tools::doctor
