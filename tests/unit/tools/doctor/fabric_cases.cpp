// Cases of the rules on NCCL's plugins, and on the NVLink fabric.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {
namespace {

PluginFacts plugin(const char* digest, const char* network = "") {
  return {.variable = "NCCL_NET_PLUGIN",
          .path = "/opt/lib/libnccl-net.so",
          .digest = digest,
          .network = network,
          .by_default = true};
}

void give_plugin(JobFacts& job, const PluginFacts& plugin) {
  for (RankFacts& rank : job.ranks) rank.plugins = {plugin};
}

/// GPUs that have joined the NVLink fabric, in the domain of that name.
void give_fabric(JobFacts& job, const char* cluster = "") {
  give_gpus(job);
  for (RankFacts& rank : job.ranks) {
    rank.imex_channel = true;
    rank.gpu_health = {{.name = "GPU-a", .fabric = topology::FabricState::completed, .cluster = cluster}};
  }
  for (NodeRecord& node : job.nodes) node.facts.imex_nodes = "5f";
}

}  // namespace

std::vector<Case> fabric_faults() {
  return {
      {"plugin-differs", "one node has none",
       [](auto& job) {
         give_plugin(job, plugin("1"));
         job.ranks[2].plugins.clear();
         job.ranks[3].plugins.clear();
       }},
      {"plugin-differs", "another file of that name",
       [](auto& job) {
         give_plugin(job, plugin("1"));
         job.ranks[3].plugins[0].digest = "2";
       }},
      {"plugin-stray", "libfabric's without EFA", [](auto& job) { give_plugin(job, plugin("1", "libfabric")); }},
      {"plugin-stray", "HPC-X' on RoCE",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) give_rdma(node, "Ethernet");
         give_plugin(job, plugin("1", "InfiniBand"));
       }},
      {"env-foreign", "Google's without a plugin", [](auto& job) { set_all(job, "NCCL_FASTRAK_NUM_FLOWS", "2"); }},
      {"env-foreign", "EFA's without libfabric",
       [](auto& job) {
         give_plugin(job, plugin("1"));
         set_all(job, "FI_EFA_USE_DEVICE_RDMA", "1");
       }},
      {"file-missing", "a topology",
       [](auto& job) { job.ranks[1].missing_files["NCCL_TOPO_FILE"] = "/opt/azure/ndv4-topo.xml"; }},
      {"gpu-fabric", "not started",
       [](auto& job) {
         give_fabric(job);
         job.ranks[1].gpu_health[0].fabric = topology::FabricState::not_started;
       }},
      {"gpu-fabric", "ended with an error",
       [](auto& job) {
         give_fabric(job);
         job.ranks[1].gpu_health[0].fabric_error = 15;
       }},
      {"gpu-fabric", "A100 without Fabric Manager",
       [](auto& job) {
         job.nodes[1].facts.nvswitches = 6;
         job.nodes[1].facts.fabric_manager = FabricManager::absent;
       }},
      {"fabric-manager-version", "an older one",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) node.facts.nvidia_driver = "550.54.15";
         job.nodes[1].facts.fabric_manager_version = "550.54.14";
       }},
      {"nvls-caps", "a container",
       [](auto& job) {
         give_fabric(job);
         for (RankFacts& rank : job.ranks) rank.nvidia_caps = false;
       }},
      {"imex-channel", "none",
       [](auto& job) {
         give_fabric(job, "01");
         job.ranks[2].imex_channel = false;
       }},
      {"imex-domain", "another list on one node",
       [](auto& job) {
         give_fabric(job, "01");
         job.nodes[1].facts.imex_nodes = "60";
       }},
  };
}

std::vector<Case> fabric_near_misses() {
  return {
      {"plugin-differs", "a profiler on one rank",
       [](auto& job) {
         job.ranks[0].plugins = {plugin("1")};
         job.ranks[0].plugins[0].variable = "NCCL_PROFILER_PLUGIN";
       }},
      {"plugin-stray", "libfabric's with EFA",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) node.facts.libfabric_device = "efa_0 (EFA)";
         give_plugin(job, plugin("1", "libfabric"));
       }},
      {"plugin-stray", "it is asked for",
       [](auto& job) {
         PluginFacts wanted = plugin("1", "libfabric");
         wanted.by_default = false;
         give_plugin(job, wanted);
       }},
      {"env-foreign", "with libfabric",
       [](auto& job) {
         for (RankFacts& rank : job.ranks) rank.libfabric = true;
         set_all(job, "FI_EFA_USE_DEVICE_RDMA", "1");
       }},
      {"env-foreign", "with a plugin",
       [](auto& job) {
         give_plugin(job, plugin("1"));
         set_all(job, "NCCL_FASTRAK_NUM_FLOWS", "2");
       }},
      {"file-missing", "it is there", [](auto& job) { set_all(job, "NCCL_TOPO_FILE", "/etc/topo.xml"); }},
      {"gpu-fabric", "GPUs have joined", [](auto& job) { give_fabric(job); }},
      {"gpu-fabric", "a container does not show other processes", [](auto& job) { job.nodes[1].facts.nvswitches = 6; }},
      {"fabric-manager-version", "unknown on one",
       [](auto& job) {
         job.nodes[1].facts.nvidia_driver = "550.54.15";
         job.nodes[0].facts.nvidia_driver = "550.54.15";
       }},
      {"nvls-caps", "switched off, and GPUs without a fabric",
       [](auto& job) {
         give_fabric(job);
         for (RankFacts& rank : job.ranks) rank.nvidia_caps = false, rank.gpu_health.clear();
       }},
      {"imex-channel", "one domain of each node, or none",
       [](auto& job) {
         give_fabric(job);
         for (RankFacts& rank : job.ranks) rank.imex_channel = false;
       }},
      {"imex-channel", "not wanted",
       [](auto& job) {
         give_fabric(job, "01");
         for (RankFacts& rank : job.ranks) rank.imex_channel = false;
         set_all(job, "NCCL_MNNVL_ENABLE", "0");
       }},
      {"imex-domain", "two domains",
       [](auto& job) {
         give_fabric(job, "01");
         job.nodes[1].facts.imex_nodes = "60";
         for (std::size_t rank : {2U, 3U}) job.ranks[rank].gpu_health[0].clique = 1;
       }},
  };
}

}  // namespace ddp::tools::doctor::test
