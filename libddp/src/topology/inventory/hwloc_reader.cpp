#include "topology/inventory/hwloc_reader.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/inventory/hwloc_devices.hpp"

namespace ddp::topology {
namespace {

std::vector<hwloc_obj_t> objects(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> found;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) found.push_back(object);
  return found;
}

/// Index of the first of @p groups that has a processor of @p cpus; -1 if none has.
template <class Group>
int group_of(const std::vector<Group>& groups, const CpuSet& cpus) {
  const auto found =
      std::find_if(groups.begin(), groups.end(), [&](const Group& group) { return group.cpus.intersects(cpus); });
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

void read_numa_nodes(hwloc_topology_t topology, Topology::Parts& parts) {
  std::vector<hwloc_obj_t> nodes = objects(topology, HWLOC_OBJ_NUMANODE);
  CpuSet seen;
  for (const hwloc_obj_t object : nodes) {
    const std::string_view subtype = object->subtype == nullptr ? "" : object->subtype;
    NumaNode node{.os_index = static_cast<int>(object->os_index),
                  .package = -1,
                  .cpus = to_cpu_set(object->cpuset),
                  .memory_bytes = object->attr->numanode.local_memory};
    for (std::size_t i = 0; i < parts.packages.size(); ++i) {
      if (parts.packages[i].cpus.contains(node.cpus) && !node.cpus.empty()) node.package = static_cast<int>(i);
    }
    // High-bandwidth and GPU memory are NUMA nodes with the processors of another one: as places for ranks they would
    // count twice.
    if (subtype == "GPUMemory" || node.cpus.intersects(seen)) node.cpus = {};
    seen = seen | node.cpus;
    parts.numa_nodes.push_back(std::move(node));
  }
}

void read_cores(hwloc_topology_t topology, Topology::Parts& parts) {
  std::vector<hwloc_obj_t> cores = objects(topology, HWLOC_OBJ_CORE);
  if (cores.empty()) cores = objects(topology, HWLOC_OBJ_PU);  // hwloc does not know them on some virtual machines
  for (const hwloc_obj_t object : cores) {
    Core core{.numa_node = -1, .package = -1, .cpus = to_cpu_set(object->cpuset)};
    core.numa_node = group_of(parts.numa_nodes, core.cpus);
    core.package = group_of(parts.packages, core.cpus);
    parts.cores.push_back(std::move(core));
  }
}

/// Bandwidths of one of hwloc's matrices. NVSwitches are objects of the matrix, too: the transitive closure turns two
/// ways over switches into one bandwidth between GPUs.
void read_links(hwloc_topology_t topology, const char* name, const DeviceTable& devices, Topology::Parts& parts) {
  unsigned count = 1;
  hwloc_distances_s* matrix = nullptr;
  if (hwloc_distances_get_by_name(topology, name, &count, &matrix, 0) != 0 || count == 0) return;
  hwloc_distances_transform(topology, matrix, HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, nullptr, 0);
  for (unsigned i = 0; i < matrix->nbobjs; ++i) {
    for (unsigned j = 0; j < matrix->nbobjs; ++j) {
      if (i == j || matrix->objs[i] == nullptr || matrix->objs[j] == nullptr) continue;
      const int a = devices.gpu_of(matrix->objs[i]);
      const int b = devices.gpu_of(matrix->objs[j]);
      if (a < 0 || b < 0 || a == b) continue;
      auto& bandwidth = parts.gpu_links[static_cast<std::size_t>(a) * parts.gpus.size() + static_cast<std::size_t>(b)];
      bandwidth = std::max(bandwidth, static_cast<double>(matrix->values[i * matrix->nbobjs + j]));
    }
  }
  hwloc_distances_release(topology, matrix);
}

void add_links(const LiveFacts& facts, Topology::Parts& parts) {
  const auto index_of = [&](const PciAddress& address) {
    const auto found =
        std::find_if(parts.gpus.begin(), parts.gpus.end(), [&](const Gpu& gpu) { return gpu.pci == address; });
    return found - parts.gpus.begin();
  };
  const auto size = static_cast<std::ptrdiff_t>(parts.gpus.size());
  for (const GpuLinkFact& link : facts.gpu_links) {
    const auto a = index_of(link.a);
    const auto b = index_of(link.b);
    if (a == size || b == size || a == b) continue;
    auto& bandwidth = parts.gpu_links[static_cast<std::size_t>(a * size + b)];
    bandwidth = std::max(bandwidth, link.mb_per_s);
  }
}

}  // namespace

CpuSet to_cpu_set(hwloc_const_bitmap_t bitmap) {
  CpuSet set;
  if (bitmap == nullptr) return set;
  if (hwloc_bitmap_weight(bitmap) < 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reading the processors of a topology",
                 .cause = "one of its sets has no end",
                 .hint = "was the XML edited by hand?"}};
  }
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu)) set.insert(cpu);
  return set;
}

Topology::Parts read_hwloc(hwloc_topology_t topology, const LiveFacts& facts) {
  Topology::Parts parts;
  for (const hwloc_obj_t object : objects(topology, HWLOC_OBJ_PACKAGE)) {
    parts.packages.push_back({.os_index = static_cast<int>(object->os_index), .cpus = to_cpu_set(object->cpuset)});
  }
  read_numa_nodes(topology, parts);
  read_cores(topology, parts);
  parts.allowed = to_cpu_set(hwloc_topology_get_allowed_cpuset(topology));

  const DeviceTable devices = read_devices(topology, facts, parts);
  if (!parts.gpus.empty()) {
    parts.gpu_links.assign(parts.gpus.size() * parts.gpus.size(), 0);
    for (const char* name : {"NVLinkBandwidth", "XGMIBandwidth", "XeLinkBandwidth"}) {
      read_links(topology, name, devices, parts);
    }
    add_links(facts, parts);
  }
  return parts;
}

}  // namespace ddp::topology
