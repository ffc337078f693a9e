#include "topology/inventory/gpu_facts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "topology/inventory/gpu_facts.hpp"
#include "topology/inventory/nvml.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::topology {
namespace {

namespace fs = std::filesystem;

GpuFact fact_of(const NvmlGpu& gpu) {
  GpuFact fact{
      .pci = gpu.pci, .nvml_index = gpu.index, .model = gpu.name, .uuid = gpu.uuid, .mig = gpu.mig, .visible = true};
  if (gpu.mig_enabled && gpu.mig.empty()) fact.hidden_reason = "MIG is on, and none of its parts may be used";
  return fact;
}

/// Bandwidth from one GPU in MB/s: to each GPU at the other end of a link, and to switches.
struct LinkSums {
  std::map<PciAddress, double> direct;
  double to_switches = 0;
};

LinkSums sum_links(const fs::path& sys, const NvmlGpu& gpu, const std::vector<GpuFact>& gpus) {
  LinkSums sums;
  for (const NvLink& link : gpu.links) {
    LinkEnd end = link.end;
    const bool to_gpu = link.remote && std::any_of(gpus.begin(), gpus.end(),
                                                   [&](const GpuFact& other) { return other.pci == *link.remote; });
    if (end == LinkEnd::unknown && to_gpu) end = LinkEnd::gpu;
    if (end == LinkEnd::unknown && link.remote && is_other_bridge(pci_folder(sys, *link.remote))) {
      end = LinkEnd::nvswitch;
    }
    if (end == LinkEnd::nvswitch) sums.to_switches += link.mb_per_s;
    if (end == LinkEnd::gpu && to_gpu && *link.remote != gpu.pci) sums.direct[*link.remote] += link.mb_per_s;
  }
  return sums;
}

std::vector<GpuLinkFact> links_among(const fs::path& sys, const std::vector<NvmlGpu>& listed,
                                     const std::vector<GpuFact>& gpus) {
  std::map<PciAddress, LinkSums> sums;
  for (const NvmlGpu& gpu : listed) sums.emplace(gpu.pci, sum_links(sys, gpu, gpus));
  std::vector<GpuLinkFact> links;
  for (const auto& [a, from_a] : sums) {
    std::map<PciAddress, double> reached = from_a.direct;
    for (const auto& [b, from_b] : sums) {
      const double switched = std::min(from_a.to_switches, from_b.to_switches);
      if (a != b && switched > 0) reached[b] += switched;
    }
    for (const auto& [b, mb_per_s] : reached) links.push_back({.a = a, .b = b, .mb_per_s = mb_per_s});
  }
  return links;
}

}  // namespace

GpuFacts collect_gpu_facts(const fs::path& root, const std::optional<std::vector<NvmlGpu>>& listed) {
  const fs::path sys = root / "sys";
  GpuFacts facts;
  for (const NvmlGpu& gpu : listed.value_or(std::vector<NvmlGpu>{})) facts.gpus.push_back(fact_of(gpu));
  for (GpuDevice& device : find_gpu_devices(root)) {
    const bool known = std::any_of(facts.gpus.begin(), facts.gpus.end(),
                                   [&](const GpuFact& fact) { return fact.pci == device.fact.pci; });
    if (known) continue;
    if (device.nvidia && listed && device.has_driver) {
      device.fact.hidden_reason = "NVML does not show it: the job's device cgroup or container hides it";
    }
    facts.gpus.push_back(std::move(device.fact));
  }
  for (GpuFact& fact : facts.gpus) fact.visible = fact.hidden_reason.empty();
  std::sort(facts.gpus.begin(), facts.gpus.end(), [](const GpuFact& a, const GpuFact& b) { return a.pci < b.pci; });
  if (listed) facts.links = links_among(sys, *listed, facts.gpus);
  return facts;
}

namespace {

namespace fs = std::filesystem;

constexpr long long kOtherBridge = 0x0680;  // NVSwitch

/// A PCI function that may be a GPU.
struct PciGpu {
  PciAddress address;
  fs::path folder;  ///< in sysfs
  long long vendor = 0;
};

/// Class and subclass; -1 if unknown.
long long class_of(const fs::path& pci) { return read_number(pci / "class").value_or(-0x100) >> 8; }

std::vector<std::string> render_nodes(const fs::path& pci) {
  std::vector<std::string> nodes = names_in(pci / "drm");
  std::erase_if(nodes, [](const std::string& name) { return !name.starts_with("renderD"); });
  return nodes;
}

bool is_gpu(const PciGpu& device) {
  const long long code = class_of(device.folder);
  switch (device.vendor) {
    case pci::kNvidia: return code >> 8 == pci::kDisplay;
    case pci::kAmd: return true;
    case pci::kIntel:
      if (code >> 8 != pci::kDisplay) return false;
      return code != pci::kVga || (device.address.bus != 0 && !render_nodes(device.folder).empty());
    default: return false;
  }
}

std::vector<PciGpu> find_gpus(const fs::path& sys) {
  std::vector<PciGpu> gpus;
  for (const PciAddress& address : pci_functions(sys, {pci::kDisplay, pci::kAccelerator})) {
    PciGpu device{.address = address, .folder = pci_folder(sys, address), .vendor = 0};
    device.vendor = read_number(device.folder / "vendor").value_or(0);
    if (is_gpu(device)) gpus.push_back(std::move(device));
  }
  return gpus;
}

/// Why a device file cannot be used; empty if it can. The kernel asks the device cgroup for access(2) as for open(2).
std::string why_closed(const fs::path& file, std::string_view name) {
  if (::faccessat(AT_FDCWD, file.c_str(), R_OK | W_OK, AT_EACCESS) == 0) return {};
  const int number = errno;
  if (number == ENOENT) return fmt::format("no device file: {} is missing", name);
  return fmt::format("its device file {} may not be opened ({})", name, base::errno_name(number));
}

/// Why a GPU cannot be used whatever the job's permissions are; empty if nothing is known.
std::string why_no_driver(const PciGpu& device) {
  if (!has_entry(device.folder / "driver")) return "no driver is bound to it";
  const std::string driver = link_name(device.folder / "driver");
  if (driver.starts_with("vfio")) return fmt::format("given to a virtual machine ({})", driver);
  if (device.vendor == pci::kNvidia && driver != "nvidia") {
    return fmt::format("its driver is {}; CUDA needs NVIDIA's", driver);
  }
  return {};
}

/// An NVIDIA GPU without NVML, by what the driver writes to /proc/driver/nvidia/gpus/ADDRESS/information.
GpuFact nvidia_fact(const fs::path& root, const PciGpu& device) {
  GpuFact fact;
  fact.pci = device.address;
  fact.hidden_reason = why_no_driver(device);
  if (!fact.hidden_reason.empty()) return fact;
  const fs::path information = root / "proc/driver/nvidia/gpus" / device.address.to_string() / "information";
  fact.model = read_field(information, "Model", ':').value_or("");
  fact.uuid = read_field(information, "GPU UUID", ':').value_or("");
  if (fact.uuid.find('?') != std::string::npos) fact.uuid.clear();  // the driver has not asked the GPU yet
  const auto minor = read_field(information, "Device Minor", ':');
  if (!minor || minor->empty() || minor->find_first_not_of("0123456789") != std::string::npos) {
    fact.hidden_reason = "NVIDIA's driver does not list it (/proc/driver/nvidia/gpus)";
  } else {
    const std::string name = "/dev/nvidia" + *minor;
    fact.hidden_reason = why_closed(root / name.substr(1), name);
  }
  return fact;
}

/// A GPU of AMD or Intel: one of its render nodes must be usable.
GpuFact drm_fact(const fs::path& root, const PciGpu& device) {
  GpuFact fact;
  fact.pci = device.address;
  fact.hidden_reason = why_no_driver(device);
  if (!fact.hidden_reason.empty()) return fact;
  fact.hidden_reason = "its driver gives it no render node (drm/renderD*)";
  for (const std::string& node : render_nodes(device.folder)) {
    fact.hidden_reason = why_closed(root / "dev/dri" / node, "/dev/dri/" + node);
    if (fact.hidden_reason.empty()) break;
  }
  return fact;
}

}  // namespace

std::vector<GpuDevice> find_gpu_devices(const fs::path& root) {
  std::vector<GpuDevice> devices;
  for (const PciGpu& device : find_gpus(root / "sys")) {
    GpuDevice found{.fact = device.vendor == pci::kNvidia ? nvidia_fact(root, device) : drm_fact(root, device),
                    .nvidia = device.vendor == pci::kNvidia,
                    .has_driver = why_no_driver(device).empty()};
    found.fact.visible = found.fact.hidden_reason.empty();
    devices.push_back(std::move(found));
  }
  return devices;
}

std::vector<PciAddress> accessible_gpus(const fs::path& root) {
  std::vector<PciAddress> addresses;
  for (const GpuDevice& device : find_gpu_devices(root)) {
    if (device.fact.visible) addresses.push_back(device.fact.pci);
  }
  return addresses;
}

bool is_other_bridge(const fs::path& pci) { return class_of(pci) == kOtherBridge; }

}  // namespace ddp::topology
