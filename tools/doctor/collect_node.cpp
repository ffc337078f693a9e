// What a machine has: /dev/shm, interfaces, RDMA devices.
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>

#include <ddp/error.hpp>

#include "doctor/collect.hpp"
#include "doctor/software_version.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr Version kDmaBufLinux{.major = 5, .minor = 12, .patch = 0};  // the first that registers dma-buf with RDMA

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
  collect_rdma(node, sys);
  const std::string ports =
      topology::read_attribute(root / "proc/sys/net/ipv4/ip_local_port_range").value_or("");  // "32768\t60999"
  if (const auto blank = ports.find_first_of(" \t"); blank != std::string::npos) {
    node.port_low = std::atoll(ports.c_str());
    node.port_high = std::atoll(ports.c_str() + blank);
  }
  collect_pci(node, sys);
  collect_fabric(node, root);
  collect_xids(node, root);
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    node.peer_memory = node.peer_memory || topology::has_entry(sys / "module" / module);
  }
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  ..."
  const std::string driver = topology::read_attribute(root / "proc/driver/nvidia/version").value_or("");
  node.dma_buf = driver.find("Open Kernel") != std::string::npos && Version::of(node.kernel) >= kDmaBufLinux;
  return node;
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
