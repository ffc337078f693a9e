// Reads GPUs and RDMA devices of a machine: their places on PCIe, distances, NVLink, addresses, failures in the
// kernel's log.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "../command/output.hpp"
#include "base/library_search.hpp"
#include "base/unique_fd.hpp"
#include "doctor/collect_libraries.hpp"
#include "examination.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

// "nv-fabricmanager" as the kernel truncates it, to 15 characters.
constexpr std::string_view kFabricManager = "nv-fabricmanage";

Path path_to(const Topology& topology, const Gpu& gpu, const std::string& device) {
  const auto& nics = topology.nics();
  const auto nic = std::find_if(nics.begin(), nics.end(), [&](const Nic& each) { return each.rdma_device == device; });
  return nic == nics.end() ? Path::unknown : topology.distance(gpu, *nic).path;
}

/// The first word of the text that is a version: "550.54.14" of "NVRM version: NVIDIA UNIX ... x86_64  550.54.14  Thu".
std::string version_in(const std::string& text) {
  for (const std::string& word : base::words_of(text, " \t\n")) {
    const bool digits = word.find_first_not_of("0123456789.") == std::string::npos;
    if (digits && word.find('.') != std::string::npos) return word;
  }
  return {};
}

/// Looks at the processes that this one can see: all of the machine's if the first one is its init.
FabricManager find_fabric_manager(const fs::path& proc) {
  for (const std::string& name : topology::names_in(proc)) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (topology::read_attribute(proc / name / "comm") == kFabricManager) return FabricManager::running;
  }
  const std::string first = topology::read_attribute(proc / "1/comm").value_or("");
  return first == "systemd" || first == "init" ? FabricManager::absent : FabricManager::unknown;
}

}  // namespace

void collect_fabric(NodeFacts& node, const fs::path& root) {
  const fs::path proc = root / "proc";
  node.nvidia_driver = version_in(topology::read_attribute(proc / "driver/nvidia/version").value_or(""));
  node.nvswitches = static_cast<std::int64_t>(topology::names_in(proc / "driver/nvidia-nvswitch/devices").size());
  if (node.nvswitches > 0) node.fabric_manager = find_fabric_manager(proc);
  node.imex_nodes = digest_of_lines(root / "etc/nvidia-imex/nodes_config.cfg");
}

void collect_fabric_manager(NodeFacts& node, Deadline deadline) {
  if (node.nvswitches == 0) return;
  const ProgramOutput said =
      run_program({.command = {"nv-fabricmanager", "--version"}, .clean = false, .errors = false}, deadline);
  if (said.status == 0) node.fabric_manager_version = version_in(said.text);  // "Fabric Manager version is : 550.54.14"
}

void collect_gpus(NodeFacts& node, const Topology& topology) {
  for (const Gpu& gpu : topology.gpus()) {
    GpuFacts facts{.name = name_of(gpu), .numa_node = -1, .cpus = gpu.locality.cpus};
    if (gpu.locality.numa_node >= 0) {
      facts.numa_node = topology.numa_nodes()[static_cast<std::size_t>(gpu.locality.numa_node)].os_index;
    }
    for (const RdmaPortFacts& port : node.rdma) facts.paths.push_back(path_to(topology, gpu, port.device));
    node.gpus.push_back(std::move(facts));
  }
}

// GPUs and RDMA devices on PCIe, and what is between two devices: the IOMMU, and switches that redirect peers' packets
// to the processor.

namespace {

namespace fs = std::filesystem;

constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAcceleratorClass = 0x12;
// PCI Express Base Specification, 7.5: the list of capabilities, and the port type in PCI Express's own.
constexpr std::size_t kCapabilities = 0x34;
constexpr unsigned kExpressCapability = 0x10;
constexpr std::size_t kExpressFlags = 2;
constexpr unsigned kDownstreamPort = 6;  ///< of a switch; a root port is 4
// The same, 7.7.11 (Access Control Services): the capability's id, its control register, and the bits that redirect
// requests and completions between peers to the root complex.
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

/// The configuration space of a function. Unprivileged readers get 64 bytes, which have no capabilities.
std::string configuration(const fs::path& folder) {
  std::ifstream file(folder / "config", std::ios::binary);
  std::string bytes(kConfigurationBytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

bool is_downstream_port(const std::string& bytes) {
  if (bytes.size() < kExtendedBegin) return false;
  std::set<std::size_t> seen;  // guards against a cycle in a broken list
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

/// GPUs and functions with RDMA devices, which send packets to each other.
std::vector<Peer> peers_on_pci(const fs::path& sys) {
  std::vector<PciAddress> functions = topology::pci_functions(sys, {kDisplayClass, kAcceleratorClass});
  for (const topology::RdmaFact& device : topology::read_rdma_devices(sys)) {
    if (device.pci) functions.push_back(*device.pci);
  }
  std::vector<Peer> peers;
  for (const PciAddress& address : functions) {
    const std::string driver = topology::link_name(topology::pci_folder(sys, address) / "driver");
    // A display without its own driver, as in servers' consoles, takes no part.
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
  std::set<std::string> devices;  // without functions: those of one device are not peers on PCIe
  bool gpus = false;
  std::map<fs::path, std::set<fs::path>> ports_of_switch;
  for (const Peer& peer : peers) {
    const std::string name = peer.address.to_string();
    devices.insert(name.substr(0, name.find('.', name.rfind(':'))));
    gpus = gpus || peer.driver == "nvidia" || peer.driver == "amdgpu";
    if (peer.driver == "nvidia") ++node.nvidia_gpus;
    std::error_code status;
    // /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: parent folders are the ports above.
    for (auto above = fs::canonical(topology::pci_folder(sys, peer.address), status).parent_path();
         !status && PciAddress::parse(above.filename().string()); above = above.parent_path()) {
      if (is_downstream_port(configuration(above))) ports_of_switch[above.parent_path()].insert(above);
    }
  }
  // Packets between peers turn around at the lowest switch with the peers behind different ports.
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

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostGids = 16;  // per port, as facts travel in one message; 2 to 8 are usual
constexpr const char* kUnused = "0000:0000:0000:0000:0000:0000:0000:0000";

/// The used rows. Their types are unreadable if the interface is in another network namespace.
std::vector<GidFacts> read_gids(const fs::path& port) {
  std::vector<GidFacts> found;
  for (const std::string& name : topology::names_in(port / "gids")) {
    int index = 0;
    const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), index);
    if (status != std::errc{} || end != name.data() + name.size()) continue;
    std::string gid = topology::read_attribute(port / "gids" / name).value_or(kUnused);
    if (gid == kUnused) continue;
    found.push_back({.index = index,
                     .type = topology::read_attribute(port / "gid_attrs/types" / name).value_or(""),
                     .gid = std::move(gid)});
  }
  std::sort(found.begin(), found.end(), [](const GidFacts& a, const GidFacts& b) { return a.index < b.index; });
  return found;
}

constexpr int kMostPkeys = 16;              // per port; 1 to 4 are usual
constexpr std::size_t kPrefixLetters = 19;  // "fe80:0000:0000:0000"

/// Rows of the partition table, up to the last used one.
std::vector<std::int64_t> read_pkeys(const fs::path& port) {
  std::vector<std::int64_t> keys;
  for (int row = 0; row < kMostPkeys; ++row) {
    const auto key = topology::read_number(port / "pkeys" / std::to_string(row));
    if (!key) break;
    keys.push_back(*key);
  }
  while (!keys.empty() && keys.back() == 0) keys.pop_back();
  return keys;
}

/// Names a device whose driver only libfabric supports, which NCCL's own transport cannot use; else empty.
std::string libfabric_device(const fs::path& sys, const std::string& device) {
  const std::string driver = topology::link_name(sys / "class/infiniband" / device / "device/driver");
  return driver == "efa" ? device + " (EFA)" : std::string{};
}

}  // namespace

void collect_rdma(NodeFacts& node, const fs::path& sys) {
  for (const topology::RdmaFact& device : topology::read_rdma_devices(sys)) {
    for (const NicPort& port : device.ports) {
      RdmaPortFacts facts{
          .device = device.name, .port = port.number, .state = port.state, .link_layer = port.link_layer};
      facts.rate_mbps = static_cast<std::int64_t>(port.rate_gbps * 1000);
      if (device.pci) facts.pci = device.pci->to_string();
      facts.board = topology::read_attribute(sys / "class/infiniband" / device.name / "board_id").value_or("");
      facts.firmware = topology::read_attribute(sys / "class/infiniband" / device.name / "fw_ver").value_or("");
      const fs::path folder = sys / "class/infiniband" / device.name / "ports" / std::to_string(port.number);
      if (facts.link_layer == "Ethernet" && topology::has_entry(folder / "gid_attrs/types")) {
        facts.gids_known = true;
        facts.gids = read_gids(folder);
        facts.gids_cut = facts.gids.size() > kMostGids;
        if (facts.gids_cut) facts.gids.resize(kMostGids);
      }
      if (facts.link_layer == "InfiniBand") {
        facts.subnet = topology::read_attribute(folder / "gids/0").value_or("").substr(0, kPrefixLetters);
        facts.pkeys = read_pkeys(folder);
      }
      node.rdma.push_back(std::move(facts));
    }
    if (node.libfabric_device.empty()) node.libfabric_device = libfabric_device(sys, device.name);
  }
  for (const std::string& name : topology::names_in(sys / "class/cxi")) {
    if (node.libfabric_device.empty()) node.libfabric_device = name + " (Slingshot)";
  }
}

// GPU failures (Xids) that NVIDIA's driver has written to the kernel's log. Only root may read it unless
// kernel.dmesg_restrict is 0.

namespace {

namespace fs = std::filesystem;

// Records are at most 8 KiB (Linux, Documentation/ABI/testing/dev-kmsg); a log of 16 MiB has no more.
constexpr std::size_t kRecordBytes = 8192;
constexpr int kMostRecords = 200'000;
constexpr std::size_t kMostXids = 100;
// Xids that are not a program's own fault.
constexpr std::array kFailures{48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 143};

template <class Number>
std::optional<Number> number_at(std::string_view& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Parses "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, ...": level and facility, number, microseconds
/// since boot.
std::optional<XidFacts> parse_xid(std::string_view record, double uptime_s) {
  XidFacts xid;
  if (!number_at<int>(record) || !skip(record, ",") || !number_at<std::uint64_t>(record) || !skip(record, ","))
    return std::nullopt;
  const auto at_us = number_at<std::uint64_t>(record);
  const auto text = record.find(';');
  if (!at_us || text == std::string_view::npos) return std::nullopt;
  record.remove_prefix(text + 1);
  if (!skip(record, "NVRM: Xid (PCI:")) return std::nullopt;
  const auto end = record.find("): ");
  if (end == std::string_view::npos || end > 20) return std::nullopt;
  xid.gpu = record.substr(0, end);
  record.remove_prefix(end + 3);
  const auto number = number_at<int>(record);
  if (!number || std::find(kFailures.begin(), kFailures.end(), *number) == kFailures.end()) return std::nullopt;
  xid.number = *number;
  xid.age_s = std::max<std::int64_t>(static_cast<std::int64_t>(uptime_s - static_cast<double>(*at_us) * 1e-6), 0);
  return xid;
}

void add(std::vector<XidFacts>& xids, const XidFacts& found) {
  const auto same = [&](const XidFacts& each) { return each.gpu == found.gpu && each.number == found.number; };
  const auto known = std::find_if(xids.begin(), xids.end(), same);
  if (known != xids.end()) {
    ++known->times;
    known->age_s = found.age_s;  // records are in order of time
  } else if (xids.size() < kMostXids) {
    xids.push_back(found);
  }
}

}  // namespace

void collect_xids(NodeFacts& node, const fs::path& root) {
  const base::UniqueFd log{::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  const std::string uptime_text = topology::read_attribute(root / "proc/uptime").value_or("");
  char* end = nullptr;
  const double uptime_s = std::strtod(uptime_text.c_str(), &end);
  if (!log || end == uptime_text.c_str()) return;
  std::string text;  // one record per read from the device; a file gives several at once
  for (int i = 0; i < kMostRecords; ++i) {
    std::array<char, kRecordBytes> buffer{};
    const ssize_t size = ::read(log.get(), buffer.data(), buffer.size());
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: records were overwritten meanwhile
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
    for (std::size_t line = text.find('\n'); line != std::string::npos; line = text.find('\n')) {
      if (const auto xid = parse_xid(std::string_view(text).substr(0, line), uptime_s)) add(node.xids, *xid);
      text.erase(0, line + 1);
    }
  }
}

}  // namespace ddp::tools::doctor
