#include "topology/inventory/hwloc_reader.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/inventory/gpu_facts.hpp"
#include "topology/inventory/nic_inventory.hpp"

namespace ddp::topology {
namespace {

std::vector<hwloc_obj_t> objects(hwloc_topology_t topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> found;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) found.push_back(object);
  return found;
}

/// Index of the first of @p groups with a processor of @p cpus; -1 if there is none.
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
    // High-bandwidth and GPU memory are NUMA nodes with another node's processors: as places for ranks they would count
    // twice.
    if (subtype == "GPUMemory" || node.cpus.intersects(seen)) node.cpus = {};
    seen = seen | node.cpus;
    parts.numa_nodes.push_back(std::move(node));
  }
}

void read_cores(hwloc_topology_t topology, Topology::Parts& parts) {
  std::vector<hwloc_obj_t> cores = objects(topology, HWLOC_OBJ_CORE);
  if (cores.empty()) cores = objects(topology, HWLOC_OBJ_PU);  // hwloc does not see cores on some virtual machines
  for (const hwloc_obj_t object : cores) {
    Core core{.numa_node = -1, .package = -1, .cpus = to_cpu_set(object->cpuset)};
    core.numa_node = group_of(parts.numa_nodes, core.cpus);
    core.package = group_of(parts.packages, core.cpus);
    parts.cores.push_back(std::move(core));
  }
}

/// Bandwidths of one of hwloc's matrices. NVSwitches are objects of the matrix, too: the transitive closure turns two
/// paths over switches into one bandwidth between GPUs.
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

namespace {

std::string info(hwloc_obj_t object, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? "" : value;
}

std::vector<hwloc_obj_t> os_devices(hwloc_obj_t pci) {
  std::vector<hwloc_obj_t> found;
  for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type == HWLOC_OBJ_OS_DEVICE && child->name != nullptr) found.push_back(child);
  }
  std::sort(found.begin(), found.end(),
            [](hwloc_obj_t a, hwloc_obj_t b) { return std::string_view{a->name} < std::string_view{b->name}; });
  return found;
}

PciAddress address_of(hwloc_obj_t pci) {
  return {.domain = pci->attr->pcidev.domain,
          .bus = pci->attr->pcidev.bus,
          .device = pci->attr->pcidev.dev,
          .function = pci->attr->pcidev.func};
}

/// The name from the PCI data base if hwloc was built with it, otherwise vendor and device number.
std::string pci_model(hwloc_obj_t pci) {
  const std::string name = info(pci, "PCIDevice");
  if (!name.empty()) return name;
  return fmt::format("{:04x}:{:04x}", pci->attr->pcidev.vendor_id, pci->attr->pcidev.device_id);
}

/// Numbers bridges and locates devices.
class Places {
 public:
  explicit Places(const Topology::Parts& parts) : parts_(parts) {}

  Locality of(hwloc_topology_t topology, hwloc_obj_t device) {
    Locality place;
    for (hwloc_obj_t above = device->parent; above != nullptr && above->type == HWLOC_OBJ_BRIDGE;
         above = above->parent) {
      place.bridges.push_back(bridges_.emplace(above, static_cast<int>(bridges_.size())).first->second);
    }
    std::reverse(place.bridges.begin(), place.bridges.end());
    place.cpus = to_cpu_set(hwloc_get_non_io_ancestor_obj(topology, device)->cpuset);
    place.package = only_group(parts_.packages, place.cpus);
    place.numa_node = only_group(parts_.numa_nodes, place.cpus);
    return place;
  }

 private:
  /// The only group with processors of @p cpus; -1 if none or several have any.
  template <class Group>
  static int only_group(const std::vector<Group>& groups, const CpuSet& cpus) {
    int found = -1;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i].cpus.intersects(cpus)) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(i);
    }
    return found;
  }

  const Topology::Parts& parts_;
  std::map<hwloc_obj_t, int> bridges_;
};

Vendor vendor_of(hwloc_obj_t pci) {
  switch (pci->attr->pcidev.vendor_id) {
    case pci::kNvidia: return Vendor::nvidia;
    case pci::kAmd: return Vendor::amd;
    case pci::kIntel: return Vendor::intel;
    default: return Vendor::other;
  }
}

bool is_training_gpu(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices, const LiveFacts& facts) {
  const unsigned base_class = pci->attr->pcidev.class_id >> 8;
  const Vendor vendor = vendor_of(pci);
  if (vendor == Vendor::other) return false;
  if (base_class == pci::kAccelerator) return vendor == Vendor::amd;
  if (base_class != pci::kDisplay) return false;
  if (vendor != Vendor::intel || pci->attr->pcidev.class_id != pci::kVga) return true;
  // The graphics of Intel's desktop processors are VGA devices; its compute cards have a Level Zero device.
  const auto address = address_of(pci);
  return std::any_of(devices.begin(), devices.end(),
                     [](hwloc_obj_t device) { return std::string_view{device->name}.starts_with("ze"); }) ||
         std::any_of(facts.gpus.begin(), facts.gpus.end(), [&](const GpuFact& fact) { return fact.pci == address; });
}

/// The number in "nvml3" or "rsmi3".
std::optional<int> trailing_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int number = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (status != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

void take_os_device(hwloc_obj_t device, Gpu& gpu) {
  const std::string_view name{device->name};
  gpu.os_names.emplace_back(name);
  for (const std::string_view prefix : {"nvml", "rsmi"}) {
    if (const auto number = trailing_number(name, prefix)) gpu.vendor_index = number;
  }
  if (const std::string model = info(device, "GPUModel"); !model.empty()) gpu.model = model;
  if (const std::string uuid = info(device, "NVIDIAUUID"); !uuid.empty()) gpu.uuid = uuid;
  // ROCR_VISIBLE_DEVICES takes "GPU-" and the 16 digits.
  if (const std::string uuid = info(device, "AMDUUID"); !uuid.empty()) gpu.uuid = "GPU-" + uuid;
}

Gpu make_gpu(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices, const LiveFacts& facts, Locality place) {
  Gpu gpu;
  gpu.pci = address_of(pci);
  gpu.vendor = vendor_of(pci);
  gpu.model = pci_model(pci);
  gpu.locality = std::move(place);
  for (const hwloc_obj_t device : devices) take_os_device(device, gpu);
  for (const GpuFact& fact : facts.gpus) {
    if (fact.pci != gpu.pci) continue;
    if (fact.nvml_index) gpu.vendor_index = fact.nvml_index;
    if (!fact.model.empty()) gpu.model = fact.model;
    if (!fact.uuid.empty()) gpu.uuid = fact.uuid;
    gpu.mig = fact.mig;
    gpu.visible = fact.visible;
    gpu.hidden_reason = fact.hidden_reason;
  }
  return gpu;
}

NicFunction make_nic_function(hwloc_obj_t pci, const std::vector<hwloc_obj_t>& devices, Locality place) {
  NicFunction function{.pci = address_of(pci),
                       .class_id = pci->attr->pcidev.class_id,
                       .vendor_id = pci->attr->pcidev.vendor_id,
                       .device_id = pci->attr->pcidev.device_id,
                       .model = pci_model(pci),
                       .pci_gbps = static_cast<double>(pci->attr->pcidev.linkspeed) * 8,
                       .locality = std::move(place)};
  for (const hwloc_obj_t device : devices) {
    if (is_network(device) && function.interface.empty()) function.interface = device->name;
    if (!is_openfabrics(device) || !function.rdma_device.empty()) continue;
    function.rdma_device = device->name;
    for (int port = 1;; ++port) {  // "Port1State" holds an enum ibv_port_state
      const std::string state = info(device, fmt::format("Port{}State", port).c_str());
      if (state.empty()) break;
      const std::string_view word = state == "4" ? "ACTIVE" : state == "1" ? "DOWN" : state == "2" ? "INIT" : "ARMED";
      function.ports.push_back({.number = port, .state = std::string(word), .rate_gbps = 0});
    }
  }
  return function;
}

}  // namespace

int DeviceTable::gpu_of(hwloc_obj_t object) const {
  for (; object != nullptr; object = object->parent) {
    const auto found = gpus_.find(object);
    if (found != gpus_.end()) return found->second;
    if (object->type == HWLOC_OBJ_PCI_DEVICE) return -1;
  }
  return -1;
}

DeviceTable read_devices(hwloc_topology_t topology, const LiveFacts& facts, Topology::Parts& parts) {
  Places places{parts};
  std::vector<std::pair<Gpu, hwloc_obj_t>> gpus;
  std::vector<NicFunction> functions;
  hwloc_obj_t pci = nullptr;
  while ((pci = hwloc_get_next_pcidev(topology, pci)) != nullptr) {
    const auto devices = os_devices(pci);
    if (is_training_gpu(pci, devices, facts)) {
      gpus.emplace_back(make_gpu(pci, devices, facts, places.of(topology, pci)), pci);
      continue;
    }
    const bool network = std::any_of(devices.begin(), devices.end(),
                                     [](hwloc_obj_t device) { return is_network(device) || is_openfabrics(device); });
    if (network || pci->attr->pcidev.class_id >> 8 == pci::kNetwork) {
      functions.push_back(make_nic_function(pci, devices, places.of(topology, pci)));
    }
  }
  std::sort(gpus.begin(), gpus.end(), [](const auto& a, const auto& b) { return a.first.pci < b.first.pci; });
  std::map<hwloc_obj_t, int> numbers;
  for (auto& [gpu, object] : gpus) {
    gpu.index = static_cast<int>(parts.gpus.size());
    numbers.emplace(object, gpu.index);
    parts.gpus.push_back(std::move(gpu));
  }
  parts.nics = make_nics(std::move(functions), facts);
  for (const InterfaceFact& fact : facts.interfaces) parts.interfaces.push_back(fact.interface);
  // Another tool recorded the topology: there is no more than hwloc saw.
  if (parts.interfaces.empty()) parts.interfaces = interfaces_of(parts.nics);
  return DeviceTable{std::move(numbers)};
}

}  // namespace ddp::topology
