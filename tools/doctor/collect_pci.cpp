// GPUs and RDMA devices on PCIe, and what stands between two of them: the IOMMU, and switches that send packets of
// peers up to the processor.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAcceleratorClass = 0x12;
// PCI Express Base Specification, 7.5: the list of capabilities, and the type of a port in the one of PCI Express.
constexpr std::size_t kCapabilities = 0x34;
constexpr unsigned kExpressCapability = 0x10;
constexpr std::size_t kExpressFlags = 2;
constexpr unsigned kDownstreamPort = 6;  ///< of a switch; a root port is 4
// The same, 7.7.11 (Access Control Services): the capability's id, its control register, and the bits of that which
// send requests and completions between peers up to the root complex.
constexpr unsigned kAcsCapability = 0x000d;
constexpr std::size_t kAcsControl = 6;
constexpr unsigned kAcsRequestRedirect = 0x04;
constexpr unsigned kAcsCompletionRedirect = 0x08;
constexpr std::size_t kExtendedBegin = 0x100;
constexpr std::size_t kConfigurationBytes = 4096;

unsigned word_at(const std::string& bytes, std::size_t offset, std::size_t size) {
  unsigned value = 0;
  for (std::size_t i = size; i-- > 0;) value = (value << 8U) | static_cast<unsigned char>(bytes[offset + i]);
  return value;
}

/// The configuration space of a function. Without privileges the kernel shows 64 bytes, which have no capabilities.
std::string configuration(const fs::path& folder) {
  std::ifstream file(folder / "config", std::ios::binary);
  std::string bytes(kConfigurationBytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

bool is_downstream_port(const std::string& bytes) {
  if (bytes.size() < kExtendedBegin) return false;
  std::set<std::size_t> seen;  // a circle in a broken list
  for (std::size_t at = word_at(bytes, kCapabilities, 1) & 0xfcU;
       at >= kCapabilities && at + 4 <= kExtendedBegin && seen.insert(at).second;) {
    if (word_at(bytes, at, 1) == kExpressCapability) {
      return ((word_at(bytes, at + kExpressFlags, 2) >> 4U) & 0xfU) == kDownstreamPort;
    }
    at = word_at(bytes, at + 1, 1) & 0xfcU;
  }
  return false;
}

bool redirects_peers(const std::string& bytes) {
  std::set<std::size_t> seen;
  for (std::size_t at = kExtendedBegin; at >= kExtendedBegin && at + 8 <= bytes.size() && seen.insert(at).second;) {
    const unsigned header = word_at(bytes, at, 4);
    if ((header & 0xffffU) == kAcsCapability) {
      return (word_at(bytes, at + kAcsControl, 2) & (kAcsRequestRedirect | kAcsCompletionRedirect)) != 0;
    }
    at = header >> 20U;
  }
  return false;
}

struct Peer {
  PciAddress address;
  std::string driver;
};

/// GPUs and what has RDMA devices: those that send packets to each other.
std::vector<Peer> peers_on_pci(const fs::path& sys) {
  std::vector<PciAddress> functions = topology::pci_functions(sys, {kDisplayClass, kAcceleratorClass});
  for (const topology::RdmaFact& device : topology::read_rdma_devices(sys)) {
    if (device.pci) functions.push_back(*device.pci);
  }
  std::vector<Peer> peers;
  for (const PciAddress& address : functions) {
    const std::string driver = topology::link_name(topology::pci_folder(sys, address) / "driver");
    // A display without a driver of its own, as in servers' consoles, takes no part.
    if (driver != "nvidia" && driver != "amdgpu" && !driver.starts_with("mlx") && !driver.starts_with("bnxt") &&
        driver != "ice" && driver != "irdma") {
      continue;
    }
    peers.push_back({.address = address, .driver = driver});
  }
  return peers;
}

}  // namespace

void collect_pci(NodeFacts& node, const fs::path& sys) {
  const std::vector<Peer> peers = peers_on_pci(sys);
  std::set<std::string> devices;  // without functions: those of one device do not meet on PCIe
  bool gpus = false;
  std::map<fs::path, std::set<fs::path>> ports_of_switch;
  for (const Peer& peer : peers) {
    const std::string name = peer.address.to_string();
    devices.insert(name.substr(0, name.find('.', name.rfind(':'))));
    gpus = gpus || peer.driver == "nvidia" || peer.driver == "amdgpu";
    if (peer.driver == "nvidia") ++node.nvidia_gpus;
    std::error_code status;
    // /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: the ports above it are the folders above.
    for (auto above = fs::canonical(topology::pci_folder(sys, peer.address), status).parent_path();
         !status && PciAddress::parse(above.filename().string()); above = above.parent_path()) {
      if (is_downstream_port(configuration(above))) ports_of_switch[above.parent_path()].insert(above);
    }
  }
  // Packets between peers turn around in the lowest switch that has them behind different ports.
  for (const auto& [above, ports] : ports_of_switch) {
    if (ports.size() < 2) continue;
    for (const fs::path& port : ports) {
      if (redirects_peers(configuration(port))) node.acs_ports.push_back(port.filename().string());
    }
  }
  std::sort(node.acs_ports.begin(), node.acs_ports.end());
  if (!gpus || devices.size() < 2) return;
  for (const Peer& peer : peers) {
    const fs::path group = topology::pci_folder(sys, peer.address) / "iommu_group/type";
    if (node.iommu.empty()) node.iommu = topology::read_attribute(group).value_or("");
  }
}

}  // namespace ddp::tools::doctor
