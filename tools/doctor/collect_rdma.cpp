// RDMA ports, with the addresses (GIDs) that RoCE has of its interface.
#include <algorithm>
#include <charconv>

#include "doctor/collect.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostGids = 16;  // told of a port, as facts travel in one message; usual are 2 to 8
constexpr const char* kUnused = "0000:0000:0000:0000:0000:0000:0000:0000";

/// The used rows. Their types are not readable where the interface is in another network namespace.
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

constexpr int kMostPkeys = 16;              // told of a port; usual are 1 to 4
constexpr std::size_t kPrefixLetters = 19;  // "fe80:0000:0000:0000"

/// Rows of the table of partitions, up to the last one that is used.
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

/// Of the drivers whose devices NCCL's own transport cannot use.
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

}  // namespace ddp::tools::doctor
