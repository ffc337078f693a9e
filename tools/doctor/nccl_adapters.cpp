#include "doctor/nccl_adapters.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>
#include <tuple>

#include <strings.h>

#include "doctor/nccl_rdma.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::size_t kMostMerged = 4;  // NCCL_IB_MAX_DEVS_PER_NIC

long long number_or(const RankFacts& rank, std::string_view name, long long otherwise) {
  const std::string text = rank.variable(name);
  return text.empty() ? otherwise : std::strtoll(text.c_str(), nullptr, 0);
}

bool merges(const RankFacts& rank) {
  return number_or(rank, "NCCL_IB_MERGE_NICS", 1) != 0 && rank.variable("NCCL_NET_MERGE_LEVEL") != "LOC";
}

/// Functions of one adapter have the same address but for the last letter.
bool on_one_adapter(const RdmaPortFacts& a, const RdmaPortFacts& b) {
  return !a.pci.empty() && a.link_layer == b.link_layer && a.pci.size() == b.pci.size() &&
         a.pci.substr(0, a.pci.size() - 1) == b.pci.substr(0, b.pci.size() - 1);
}

/// graph/topo.cc, mirrorBits(): GPUs that follow each other get devices that are far from each other.
std::size_t mirrored(std::size_t value, std::size_t power_of_two) {
  std::size_t mirror = 0;
  for (std::size_t bit = 1, other = power_of_two / 2; bit < power_of_two; bit *= 2, other /= 2) {
    if ((value & bit) != 0) mirror |= other;
  }
  return mirror;
}

std::size_t devices_for_each(const RankFacts& rank, std::size_t devices, std::size_t gpus) {
  const std::string policy = rank.variable("NCCL_NETDEVS_POLICY");
  if (::strcasecmp(policy.c_str(), "ALL") == 0) return devices;
  if (::strncasecmp(policy.c_str(), "MAX:", 4) == 0) {
    if (const int most = std::atoi(policy.c_str() + 4); most > 0) {
      return std::min(devices, static_cast<std::size_t>(most));
    }
  }
  return (devices + gpus - 1) / gpus;
}

Nearness nearest_port(const NodeRecord& node, const GpuFacts& gpu, const NetDevice& device) {
  Nearness nearest = Nearness::unknown;
  for (const RdmaPortFacts* port : device.ports) nearest = std::min(nearest, nearness(node, gpu, *port));
  return nearest;
}

bool of_one_speed(const std::vector<NetDevice>& devices) {
  std::set<std::pair<std::int64_t, std::size_t>> speeds;
  for (const NetDevice& device : devices) speeds.emplace(device.ports.front()->rate_mbps, device.ports.size());
  return speeds.size() == 1;
}

/// NCCL leaves its own transport to a plugin for networks that it finds, and distances to a file that describes them.
bool decides_otherwise(const RankFacts& rank) {
  return !rank.variable("NCCL_TOPO_FILE").empty() ||
         std::any_of(rank.plugins.begin(), rank.plugins.end(), [](const PluginFacts& plugin) {
           return plugin.variable == "NCCL_NET_PLUGIN" && plugin.network == "libfabric";
         });
}

/// GPUs of the job's ranks on a node to which no device is nearer than this one; each once.
std::vector<const GpuFacts*> gpus_near(const JobFacts& job, const NodeRecord& node, const NetDevice& device) {
  std::vector<const GpuFacts*> all;
  Nearness nearest = Nearness::unknown;
  for (const int number : node.ranks) {
    const GpuFacts* gpu = own_gpu(job, job.ranks[static_cast<std::size_t>(number)]);
    if (gpu == nullptr || std::find(all.begin(), all.end(), gpu) != all.end()) continue;
    all.push_back(gpu);
    nearest = std::min(nearest, nearest_port(node, *gpu, device));
  }
  std::erase_if(all, [&](const GpuFacts* gpu) { return nearest_port(node, *gpu, device) != nearest; });
  return all;
}

}  // namespace

std::string NetDevice::name() const {
  std::string text;
  for (const RdmaPortFacts* port : ports) text += (text.empty() ? "" : "+") + port->device;
  return text;
}

std::vector<NetDevice> net_devices(const NodeRecord& node, const RankFacts& rank) {
  if (!takes_rdma(node, rank)) return {};
  auto ports = taken_by_nccl(node, rank);
  if (number_or(rank, "NCCL_IB_DEVICE_PCI_ORDER", 1) != 0) {
    std::stable_sort(ports.begin(), ports.end(), [](const RdmaPortFacts* a, const RdmaPortFacts* b) {
      return std::tie(a->pci, a->port) < std::tie(b->pci, b->port);
    });
  }
  std::vector<NetDevice> devices;
  for (const RdmaPortFacts* port : ports) {
    const auto joins = [&](const NetDevice& device) {
      return device.ports.size() < kMostMerged && on_one_adapter(*device.ports.front(), *port);
    };
    const auto found = merges(rank) ? std::find_if(devices.begin(), devices.end(), joins) : devices.end();
    if (found != devices.end()) {
      found->ports.push_back(port);
    } else {
      devices.push_back({.ports = {port}});
    }
  }
  return devices;
}

const GpuFacts* own_gpu(const JobFacts& job, const RankFacts& rank) {
  const NodeRecord& node = job.node_of(rank);
  std::size_t position = 0;
  if (rank.gpus.size() > 1) {
    position = static_cast<std::size_t>(rank.local_rank);
    if (rank.gpus.size() < node.ranks.size() || position >= rank.gpus.size()) return nullptr;
  }
  if (rank.gpus.empty()) return nullptr;
  const std::string name = rank.gpus[position].substr(0, rank.gpus[position].find(' '));  // a MIG part's GPU
  const auto found = std::find_if(node.facts.gpus.begin(), node.facts.gpus.end(),
                                  [&](const GpuFacts& gpu) { return gpu.name == name; });
  return found == node.facts.gpus.end() ? nullptr : &*found;
}

Nearness nearness(const NodeRecord& node, const GpuFacts& gpu, const RdmaPortFacts& port) {
  const auto index = static_cast<std::size_t>(&port - node.facts.rdma.data());
  switch (index < gpu.paths.size() ? gpu.paths[index] : Path::unknown) {
    case Path::self:
    case Path::nvlink:
    case Path::pix: return Nearness::pix;
    case Path::pxb: return Nearness::pxb;
    case Path::phb:
    case Path::node: return Nearness::phb;
    case Path::sys: return Nearness::sys;
    case Path::unknown: break;
  }
  return Nearness::unknown;
}

std::string_view to_string(Nearness nearness) noexcept {
  switch (nearness) {
    case Nearness::pix: return "PIX";
    case Nearness::pxb: return "PXB";
    case Nearness::phb: return "PHB";
    case Nearness::sys: return "SYS";
    case Nearness::unknown: break;
  }
  return "?";
}

std::optional<std::vector<NetDevice>> predict_adapters(const JobFacts& job, const RankFacts& rank) {
  const NodeRecord& node = job.node_of(rank);
  const GpuFacts* gpu = own_gpu(job, rank);
  const std::vector<NetDevice> devices = net_devices(node, rank);
  if (gpu == nullptr || gpu->number < 0 || devices.empty() || decides_otherwise(rank) || !of_one_speed(devices)) {
    return std::nullopt;
  }
  Nearness nearest = Nearness::unknown;
  for (const NetDevice& device : devices) {
    const Nearness each = nearest_port(node, *gpu, device);
    if (each == Nearness::unknown) return std::nullopt;
    nearest = std::min(nearest, each);
  }
  std::vector<NetDevice> near;
  std::copy_if(devices.begin(), devices.end(), std::back_inserter(near),
               [&](const NetDevice& device) { return nearest_port(node, *gpu, device) == nearest; });
  const std::size_t gpus = std::max<std::size_t>(gpus_near(job, node, near.front()).size(), 1);
  std::size_t first = static_cast<std::size_t>(gpu->number) % gpus;
  if (std::has_single_bit(near.size())) first = mirrored(first, near.size());
  std::vector<NetDevice> taken;
  for (std::size_t i = 0; i < devices_for_each(rank, near.size(), gpus); ++i) {
    taken.push_back(near[(first + i) % near.size()]);
  }
  return taken;
}

}  // namespace ddp::tools::doctor
