// What hwloc does not know about this machine: the state of network interfaces and RDMA ports, virtual functions, and
// which GPUs this process may use. Exported XML has it too, so a recorded machine shows as much as a live one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/devices.hpp>

namespace ddp::topology {

struct InterfaceFact {
  NetworkInterface interface;
  std::optional<PciAddress> pci;  ///< of the device behind it
};

struct RdmaFact {
  std::string name;  ///< "mlx5_0"
  std::optional<PciAddress> pci{};
  std::vector<NicPort> ports{};
};

struct GpuFact {
  PciAddress pci;
  std::optional<int> nvml_index;
  std::string model{};  ///< empty if unknown
  std::string uuid{};
  std::vector<MigDevice> mig{};
  bool visible = true;
  std::string hidden_reason{};
};

struct GpuLinkFact {
  PciAddress a;
  PciAddress b;
  double mb_per_s = 0;  ///< sum of the active links from a to b, or from a to the switches that b is on, too
};

struct LiveFacts {
  std::vector<InterfaceFact> interfaces;  ///< in the kernel's order
  std::vector<RdmaFact> rdma;             ///< by name
  std::vector<PciAddress> virtual_functions;
  std::vector<GpuFact> gpus;  ///< by PCI address; only those with known facts
  std::vector<GpuLinkFact> gpu_links;
};

/// Reads /sys, the kernel's interface list, device files and NVML. What cannot be read is left out.
LiveFacts collect_live_facts();

std::string to_json(const LiveFacts& facts);
/// Throws Error(invalid_argument) for text that to_json() cannot have written.
LiveFacts facts_from_json(std::string_view json);

}  // namespace ddp::topology
