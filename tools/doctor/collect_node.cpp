// What a machine has: /dev/shm, interfaces, RDMA devices, PCIe, the addresses of names.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <set>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/address_lookup.hpp"
#include "base/unique_fd.hpp"
#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kDisplayClass = 0x03;
constexpr unsigned kAcceleratorClass = 0x12;
// PCI Express Base Specification, 7.7.11 (Access Control Services): the capability's id, its control register, and the
// bits of that which send requests and completions between peers up to the root complex.
constexpr unsigned kAcsCapability = 0x000d;
constexpr std::size_t kAcsControl = 6;
constexpr unsigned kAcsRequestRedirect = 0x04;
constexpr unsigned kAcsCompletionRedirect = 0x08;
constexpr std::size_t kExtendedBegin = 0x100;
constexpr std::size_t kConfigurationBytes = 4096;

InterfaceFacts read_interface(const fs::path& root, const topology::RawInterface& raw,
                              const topology::InterfaceFact& fact) {
  const auto number = [](const fs::path& file) { return topology::read_number(file).value_or(0); };
  const fs::path folder = root / "sys/class/net" / raw.name;
  const fs::path conf = root / "proc/sys/net/ipv4/conf";
  return {.name = raw.name,
          .kind = fact.interface.kind,
          .running = fact.interface.up,
          .mtu = number(folder / "mtu"),
          .rate_mbps = static_cast<std::int64_t>(fact.interface.rate_gbps * 1000),
          .arp_ignore = std::max(number(conf / raw.name / "arp_ignore"), number(conf / "all/arp_ignore")),
          .arp_announce = std::max(number(conf / raw.name / "arp_announce"), number(conf / "all/arp_announce")),
          .addresses = raw.addresses};
}

unsigned word_at(const std::string& bytes, std::size_t offset, std::size_t size) {
  unsigned value = 0;
  for (std::size_t i = size; i-- > 0;) value = (value << 8U) | static_cast<unsigned char>(bytes[offset + i]);
  return value;
}

/// Whether a port's Access Control Services redirect peers' packets. Without privileges the kernel shows 64 bytes only.
bool redirects_peers(const fs::path& config) {
  std::ifstream file(config, std::ios::binary);
  std::string bytes(kConfigurationBytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  std::set<std::size_t> seen;  // a circle in a broken list
  for (std::size_t at = kExtendedBegin; at >= kExtendedBegin && at + 8 <= bytes.size() && seen.insert(at).second;) {
    const unsigned header = word_at(bytes, at, 4);
    if ((header & 0xffffU) == kAcsCapability) {
      return (word_at(bytes, at + kAcsControl, 2) & (kAcsRequestRedirect | kAcsCompletionRedirect)) != 0;
    }
    at = header >> 20U;
  }
  return false;
}

/// GPUs and what has RDMA devices: those that send packets to each other.
std::vector<PciAddress> peers_on_pci(const fs::path& sys) {
  std::vector<PciAddress> peers = topology::pci_functions(sys, {kDisplayClass, kAcceleratorClass});
  for (const topology::RdmaFact& device : topology::read_rdma_devices(sys)) {
    if (device.pci) peers.push_back(*device.pci);
  }
  // A display without a driver of its own, as in servers' consoles, takes no part.
  std::erase_if(peers, [&](const PciAddress& address) {
    const std::string driver = topology::link_name(topology::pci_folder(sys, address) / "driver");
    return driver != "nvidia" && driver != "amdgpu" && !driver.starts_with("mlx") && !driver.starts_with("bnxt") &&
           driver != "ice" && driver != "irdma";
  });
  return peers;
}

void read_pci(NodeFacts& node, const fs::path& sys) {
  std::set<std::string> ports;
  for (const PciAddress& address : peers_on_pci(sys)) {
    const fs::path folder = topology::pci_folder(sys, address);
    if (node.iommu.empty()) node.iommu = topology::read_attribute(folder / "iommu_group/type").value_or("");
    std::error_code status;
    // /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: the ports above it are the folders above.
    for (auto above = fs::canonical(folder, status).parent_path(); !status && above.has_relative_path();
         above = above.parent_path()) {
      if (!PciAddress::parse(above.filename().string())) break;
      if (redirects_peers(above / "config")) ports.insert(above.filename().string());
    }
  }
  node.acs_ports.assign(ports.begin(), ports.end());
}

std::vector<std::string> addresses_of(const std::string& name, Deadline deadline) {
  std::vector<std::string> found;
  try {
    const auto list = base::resolve(name, 0, 0, "resolving " + name, deadline);
    for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        found.emplace_back(text.data());
      }
    }
  } catch (const Error&) {  // it does not resolve
  }
  return found;
}

/// Whether a program could not listen at the port because another one does.
bool is_taken(int port) {
  const base::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int reuse = 1;  // as stores do: connections that have ended do not count
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(port));
  return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 && errno == EADDRINUSE;
}

bool has_address(const NodeFacts& node, const std::string& address) {
  return std::any_of(node.interfaces.begin(), node.interfaces.end(), [&](const InterfaceFacts& interface) {
    return std::any_of(interface.addresses.begin(), interface.addresses.end(),
                       [&](const InterfaceAddress& each) { return each.address == address; });
  });
}

}  // namespace

NodeFacts collect_node(const fs::path& root, const std::vector<topology::RawInterface>& raw) {
  NodeFacts node;
  const fs::path sys = root / "sys";
  const fs::path kernel = root / "proc/sys/kernel";
  node.boot_id = topology::read_attribute(kernel / "random/boot_id").value_or("");
  node.kernel = topology::read_attribute(kernel / "osrelease").value_or("");
  struct statvfs shm {};
  if (::statvfs((root / "dev/shm").c_str(), &shm) == 0) {
    node.shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
    node.shm_free_bytes = static_cast<std::int64_t>(shm.f_bavail * shm.f_frsize);
  }
  const auto facts = topology::read_interfaces(sys, raw);
  for (std::size_t i = 0; i < raw.size(); ++i) node.interfaces.push_back(read_interface(root, raw[i], facts[i]));
  for (const topology::RdmaFact& device : topology::read_rdma_devices(sys)) {
    for (const NicPort& port : device.ports) {
      node.rdma.push_back(
          {.device = device.name, .port = port.number, .state = port.state, .link_layer = port.link_layer});
    }
  }
  const std::string ports =
      topology::read_attribute(root / "proc/sys/net/ipv4/ip_local_port_range").value_or("");  // "32768\t60999"
  if (const auto blank = ports.find_first_of(" \t"); blank != std::string::npos) {
    node.port_low = std::atoll(ports.c_str());
    node.port_high = std::atoll(ports.c_str() + blank);
  }
  read_pci(node, sys);
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    node.peer_memory = node.peer_memory || topology::has_entry(sys / "module" / module);
  }
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  ..."
  node.dma_buf = topology::read_attribute(root / "proc/driver/nvidia/version").value_or("").find("Open Kernel") !=
                 std::string::npos;
  return node;
}

void collect_names(NodeFacts& node, const std::string& host, const base::Environment& environment, Deadline deadline) {
  node.own_addresses = addresses_of(host, deadline);
  const std::string master = environment.raw("MASTER_ADDR").value_or("");
  if (!master.empty()) node.master_addresses = addresses_of(master, deadline);
  // Kubernetes sets "tcp://10.0.0.5:29500" for a service of the name master.
  const std::string port_text = environment.raw("MASTER_PORT").value_or("");
  int port = 0;
  if (std::from_chars(port_text.data(), port_text.data() + port_text.size(), port).ptr !=
      port_text.data() + port_text.size()) {
    port = 0;
  }
  const bool served = environment.raw("TORCHELASTIC_USE_AGENT_STORE") == "True";
  node.master_port_taken = !served && port > 0 && port < 65536 && !node.master_addresses.empty() &&
                           has_address(node, node.master_addresses.front()) && is_taken(port);
}

void collect_candidates(NodeFacts& node, const base::Environment& environment,
                        const std::vector<std::string>& peer_hosts, bool several_nodes) {
  try {
    const auto search = topology::find_candidates(
        environment, topology::read_usable_interfaces(), topology::read_rdma_devices("/sys"), peer_hosts,
        several_nodes ? topology::JobSpan::several_nodes : topology::JobSpan::one_node);
    for (const topology::InterfaceCandidate& candidate : search.candidates) {
      node.candidates.push_back(candidate.interface);
      node.candidate_facts.push_back(candidate.at);
    }
  } catch (const Error& error) {
    node.candidates_failure = error.cause();
  }
}

}  // namespace ddp::tools::doctor
