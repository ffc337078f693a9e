// GPUs of a machine: how far they are from processors and RDMA ports, the NVLink fabric between them, and which ranks
// libddp's placement gives them to.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/library_search.hpp"
#include "command/program_output.hpp"
#include "doctor/collect.hpp"
#include "doctor/text_digest.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::tools::doctor {
namespace {

namespace fs = std::filesystem;

// The kernel keeps 15 letters of "nv-fabricmanager".
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

/// Of processes that this one can see: all of the machine where the first one is its init.
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

void collect_gpus(NodeFacts& node, const Topology& topology, int local_ranks) {
  for (const Gpu& gpu : topology.gpus()) {
    GpuFacts facts{
        .name = name_of(gpu), .number = gpu.vendor_index.value_or(-1), .numa_node = -1, .cpus = gpu.locality.cpus};
    if (gpu.locality.numa_node >= 0) {
      facts.numa_node = topology.numa_nodes()[static_cast<std::size_t>(gpu.locality.numa_node)].os_index;
    }
    for (const RdmaPortFacts& port : node.rdma) facts.paths.push_back(path_to(topology, gpu, port.device));
    node.gpus.push_back(std::move(facts));
  }
  const auto visible =
      std::count_if(topology.gpus().begin(), topology.gpus().end(), [](const Gpu& gpu) { return gpu.visible; });
  // Where each rank may use only its own GPU, this rank does not know the others'.
  if (local_ranks < 1 || visible < local_ranks) return;
  for (const Placement& placement : place(topology, {.num_ranks = local_ranks, .policy = BindPolicy::none})) {
    PlacedRank placed;
    if (placement.gpu) placed.gpu = name_of(topology.gpus()[static_cast<std::size_t>(*placement.gpu)]);
    for (const int index : placement.nics) {
      const Nic& nic = topology.nics()[static_cast<std::size_t>(index)];
      if (!nic.rdma_device.empty()) placed.adapters.push_back(nic.rdma_device);
    }
    node.placed.push_back(std::move(placed));
  }
}

}  // namespace ddp::tools::doctor
