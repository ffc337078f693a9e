#include "topology/inventory/live_facts.hpp"

#include <chrono>
#include <filesystem>
#include <utility>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "topology/inventory/gpu_facts.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/inventory/nvml.hpp"

namespace ddp::topology {
namespace {

// A driver that starts eight GPUs first (no persistence daemon) needs some 10 s.
constexpr std::chrono::seconds kNvmlPatience{15};

std::vector<RawInterface> interfaces_here() {
  try {
    return list_raw_interfaces();
  } catch (const Error& error) {
    base::log(base::LogLevel::warning, "{}", error.what());
    return {};
  }
}

}  // namespace

LiveFacts collect_live_facts() {
  const std::filesystem::path root = "/";
  const std::filesystem::path sys = root / "sys";
  GpuFacts gpus = collect_gpu_facts(root, ask_nvml(Deadline::after(kNvmlPatience)));
  return {.interfaces = read_interfaces(sys, interfaces_here()),
          .rdma = read_rdma_devices(sys),
          .virtual_functions = read_virtual_functions(sys),
          .gpus = std::move(gpus.gpus),
          .gpu_links = std::move(gpus.links)};
}

}  // namespace ddp::topology
