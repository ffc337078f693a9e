#include "unit/topology/machines.hpp"

#include "unit/topology/dice.hpp"

namespace ddp::test {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

CpuSet all_cpus(const Topology::Parts& parts) {
  CpuSet cpus;
  for (const Core& core : parts.cores) cpus = cpus | core.cpus;
  return cpus;
}

/// Packages and NUMA nodes know the processors of their cores.
void fill_cpus(Topology::Parts& parts) {
  for (const Core& core : parts.cores) {
    if (core.package >= 0) {
      CpuSet& cpus = parts.packages[at(core.package)].cpus;
      cpus = cpus | core.cpus;
    }
    if (core.numa_node >= 0) {
      CpuSet& cpus = parts.numa_nodes[at(core.numa_node)].cpus;
      cpus = cpus | core.cpus;
    }
  }
}

/// Bridges as hwloc shows a switch: host bridge, root port, upstream port, and a downstream port of the device's own.
std::vector<int> behind_switch(int number, int port) {
  const int host_bridge = number * 100;
  return {host_bridge, host_bridge + 1, host_bridge + 2, host_bridge + 10 + port};
}

/// Bridges of a device on a root port of its own.
std::vector<int> root_port(int host_bridge, int port) { return {host_bridge * 100, host_bridge * 100 + 10 + port}; }

}  // namespace

Topology::Parts make_processors(const Processors& sizes) {
  Topology::Parts parts;
  const int total = sizes.packages * std::max(sizes.numa_nodes, 1) * sizes.cores;
  for (int package = 0; package < sizes.packages; ++package) {
    parts.packages.push_back({.os_index = package});
    for (int part = 0; part < std::max(sizes.numa_nodes, 1); ++part) {
      int node = -1;
      if (sizes.numa_nodes > 0) {
        node = static_cast<int>(parts.numa_nodes.size());
        parts.numa_nodes.push_back({.os_index = node, .package = package, .memory_bytes = 64ULL << 30U});
      }
      for (int i = 0; i < sizes.cores; ++i) {
        Core core{.numa_node = node, .package = package};
        const int first = static_cast<int>(parts.cores.size());
        for (int thread = 0; thread < sizes.threads; ++thread) core.cpus.insert(first + thread * total);
        parts.cores.push_back(std::move(core));
      }
    }
  }
  fill_cpus(parts);
  parts.source = "a machine made by hand";
  return parts;
}

Locality near_numa_node(const Topology::Parts& parts, int numa_node, std::vector<int> bridges) {
  const NumaNode& node = parts.numa_nodes.at(at(numa_node));
  return {.package = node.package,
          .numa_node = numa_node,
          .cpus = node.cpus.empty() ? all_cpus(parts) : node.cpus,
          .bridges = std::move(bridges)};
}

Locality near_package(const Topology::Parts& parts, int package, std::vector<int> bridges) {
  return {.package = package,
          .numa_node = -1,
          .cpus = package < 0 ? all_cpus(parts) : parts.packages.at(at(package)).cpus,
          .bridges = std::move(bridges)};
}

Gpu& add_gpu(Topology::Parts& parts, Locality locality) {
  Gpu gpu;
  gpu.index = static_cast<int>(parts.gpus.size());
  gpu.pci = {.domain = 0, .bus = static_cast<std::uint8_t>(0x10 + gpu.index), .device = 0, .function = 0};
  gpu.vendor = Vendor::nvidia;
  gpu.model = "NVIDIA H200";
  gpu.uuid = "GPU-0000000" + std::to_string(gpu.index);
  gpu.vendor_index = gpu.index;
  gpu.locality = std::move(locality);
  parts.gpus.push_back(std::move(gpu));
  return parts.gpus.back();
}

Nic& add_ethernet(Topology::Parts& parts, Locality locality, const std::string& name, double rate_gbps) {
  Nic nic;
  nic.index = static_cast<int>(parts.nics.size());
  nic.interface = name;
  nic.pci = PciAddress{.domain = 0, .bus = static_cast<std::uint8_t>(0x80 + nic.index), .device = 0, .function = 0};
  nic.rate_gbps = rate_gbps;
  nic.locality = std::move(locality);
  parts.nics.push_back(std::move(nic));
  return parts.nics.back();
}

Nic& add_nic(Topology::Parts& parts, Locality locality) {
  const std::string number = std::to_string(parts.nics.size());
  Nic& nic = add_ethernet(parts, std::move(locality), "ib" + number, 400);
  nic.rdma_device = "mlx5_" + number;
  nic.ports = {{.number = 1, .state = "ACTIVE", .link_layer = "InfiniBand", .rate_gbps = 400}};
  nic.fabric = true;
  return nic;
}

Topology::Parts eight_gpu_machine() {
  Topology::Parts parts = make_processors({.packages = 2, .numa_nodes = 2, .cores = 8, .threads = 2});
  for (int i = 0; i < 8; ++i) {
    add_gpu(parts, near_numa_node(parts, i / 2, behind_switch(i / 2, i % 2)));
    add_nic(parts, near_numa_node(parts, i / 2, behind_switch(i / 2, 2 + i % 2)));
  }
  return parts;
}

Topology::Parts dual_rail_machine() {
  Topology::Parts parts = make_processors({.packages = 2, .numa_nodes = 1, .cores = 8, .threads = 1});
  add_nic(parts, near_numa_node(parts, 0, root_port(0, 0)));
  add_nic(parts, near_numa_node(parts, 1, root_port(1, 0)));
  return parts;
}

Topology::Parts cpu_machine() {
  Topology::Parts parts = make_processors({.packages = 2, .numa_nodes = 2, .cores = 4, .threads = 2});
  add_nic(parts, near_numa_node(parts, 0, root_port(0, 0)));
  return parts;
}

Topology::Parts asymmetric_machine() {
  Topology::Parts parts = make_processors({.packages = 2, .numa_nodes = 1, .cores = 6, .threads = 1});
  for (int i = 0; i < 3; ++i) add_gpu(parts, near_numa_node(parts, 0, root_port(0, i)));
  add_gpu(parts, near_numa_node(parts, 1, root_port(1, 0)));
  add_nic(parts, near_numa_node(parts, 0, root_port(0, 3)));
  return parts;
}

Topology::Parts one_numa_machine() {
  Topology::Parts parts = make_processors({.packages = 1, .numa_nodes = 1, .cores = 6, .threads = 1});
  for (int i = 0; i < 2; ++i) add_gpu(parts, near_numa_node(parts, 0, root_port(0, i)));
  add_ethernet(parts, near_numa_node(parts, 0, root_port(0, 2)), "eth0", 10);
  return parts;
}

Topology::Parts random_machine(std::uint32_t seed) {
  Dice dice(seed);
  Topology::Parts parts;
  const bool packages = !dice.one_in(8);
  const bool numa_nodes = !dice.one_in(6);
  const int threads = dice.one_in(2) ? 2 : 1;
  const int most_cores = dice.between(1, 12);
  const int num_packages = dice.between(1, 4);
  for (int package = 0; package < num_packages; ++package) {
    const int num_parts = dice.between(1, 4);
    if (packages) parts.packages.push_back({.os_index = package});
    for (int part = 0; part < num_parts; ++part) {
      int node = -1;
      if (numa_nodes) {
        node = static_cast<int>(parts.numa_nodes.size());
        parts.numa_nodes.push_back(
            {.os_index = node * 2, .package = packages ? package : -1, .memory_bytes = 1ULL << 30U});
      }
      const int cores = dice.one_in(6) ? 0 : dice.between(1, most_cores);  // 0: the memory of a GPU
      for (int i = 0; i < cores; ++i) {
        parts.cores.push_back({.numa_node = node, .package = packages ? package : -1});
      }
    }
  }
  if (parts.cores.empty()) parts.cores.push_back({.numa_node = -1, .package = packages ? 0 : -1});

  std::vector<int> cpus(parts.cores.size() * at(threads));
  std::iota(cpus.begin(), cpus.end(), 0);
  if (dice.one_in(2)) dice.shuffle(cpus);
  for (std::size_t i = 0; i < cpus.size(); ++i) parts.cores[i % parts.cores.size()].cpus.insert(cpus[i]);
  fill_cpus(parts);

  const auto somewhere = [&] {
    std::vector<int> bridges;
    const bool pci = !dice.one_in(8);
    Locality place = near_package(parts, -1);
    int host_bridge = 0;
    if (!parts.numa_nodes.empty() && !dice.one_in(6)) {
      const int node = dice.between(0, static_cast<int>(parts.numa_nodes.size()) - 1);
      place = near_numa_node(parts, node);
      host_bridge = 1 + node * 2 + dice.between(0, 1);
    } else if (!parts.packages.empty() && !dice.one_in(3)) {
      const int package = dice.between(0, static_cast<int>(parts.packages.size()) - 1);
      place = near_package(parts, package);
      host_bridge = 100 + package;
    }
    for (int depth = 0, bridge = host_bridge; pci && depth < 5; ++depth) {
      place.bridges.push_back(bridge);
      if (depth > 0 && dice.one_in(3)) break;
      bridge = bridge * 4 + 1000 + dice.between(0, 2);
    }
    return place;
  };
  for (int i = dice.one_in(4) ? 0 : dice.between(0, 9); i > 0; --i) {
    Gpu& gpu = add_gpu(parts, somewhere());
    if (dice.one_in(10)) gpu.vendor = Vendor::amd;
    gpu.visible = !dice.one_in(8);
    if (!gpu.visible) gpu.hidden_reason = "its device file may not be opened (EPERM)";
  }
  const bool fabric = dice.one_in(2);
  for (int i = dice.one_in(6) ? 0 : dice.between(0, 9); i > 0; --i) {
    Nic& nic = fabric && !dice.one_in(4)
                   ? add_nic(parts, somewhere())
                   : add_ethernet(parts, somewhere(), "eth" + std::to_string(i), dice.one_in(3) ? 0 : 100);
    if (dice.one_in(8)) nic.rate_gbps = 10;
    nic.usable = !dice.one_in(8);
    if (!nic.usable) nic.unusable_reason = "down";
  }
  if (dice.one_in(3)) {
    for (const int cpu : cpus) {
      if (!dice.one_in(3)) parts.allowed.insert(cpu);
    }
  }
  parts.source = "the random machine " + std::to_string(seed);
  return parts;
}

}  // namespace ddp::test
