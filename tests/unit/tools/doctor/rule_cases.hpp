// What a rule is tested with: a change of a healthy job, after which it alone speaks, or none does.
#pragma once

#include "unit/tools/doctor/healthy_job.hpp"

namespace ddp::tools::doctor::test {

struct Case {
  const char* rule;  ///< the only one that is found, or that the change comes near to
  const char* what;
  std::function<void(JobFacts&)> change;
};

/// Of all but those below.
std::vector<Case> near_misses();
/// Of NCCL's version, log and timeouts.
std::vector<Case> nccl_faults();
std::vector<Case> nccl_near_misses();
/// Of RDMA devices and GPUs.
std::vector<Case> device_faults();
std::vector<Case> device_near_misses();

/// Of NCCL's choice among RDMA adapters, and places of GPUs.
std::vector<Case> adapter_faults();
std::vector<Case> adapter_near_misses();
/// Of NCCL's plugins, and the NVLink fabric.
std::vector<Case> fabric_faults();
std::vector<Case> fabric_near_misses();

inline constexpr const char* kIpv4Gid = "0000:0000:0000:0000:0000:ffff:0a01:0002";

/// All ranks would load it.
inline void give_nccl(JobFacts& job, const char* version) {
  std::vector<int> ranks(job.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  job.nccl = {{.path = "/lib/libnccl.so.2", .version = version, .names = 200, .ranks = ranks}};
}

inline void give_rdma(NodeRecord& node, const std::string& layer = "InfiniBand") {
  node.facts.rdma = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE", .link_layer = layer},
                     {.device = "mlx5_1", .port = 1, .state = "ACTIVE", .link_layer = layer}};
}

inline void give_gpus(JobFacts& job) {
  for (RankFacts& rank : job.ranks) {
    rank.gpus = {"GPU-" + std::to_string(rank.node) + "a", "GPU-" + std::to_string(rank.node) + "b"};
    rank.gpu_models = {"H200", "H200"};
    rank.gpus_of_node = rank.gpus_allowed = 2;
  }
}

inline void set_all(JobFacts& job, const std::string& name, const std::string& value) {
  for (RankFacts& rank : job.ranks) rank.environment[name] = value;
}

/// Both nodes get another interface with the given name, of the given subnet, that is reached from the other node.
inline void give_network(JobFacts& job, const std::string& name, const std::string& subnet) {
  for (int number = 0; number < 2; ++number) {
    NodeRecord& node = job.nodes[static_cast<std::size_t>(number)];
    node.facts.interfaces.push_back(interface_of(name, subnet + std::to_string(number + 1)));
    node.probes.results.push_back(reached(1 - number, name, subnet + std::to_string(2 - number)));
  }
}

/// Another network, which libddp chooses.
inline void give_faster_network(JobFacts& job) {
  give_network(job, "eth1", "10.2.0.");
  for (int number = 0; number < 2; ++number) {
    NodeFacts& node = job.nodes[static_cast<std::size_t>(number)].facts;
    node.candidates = {"eth1"};
    node.candidate_facts = {candidate("10.2.0." + std::to_string(number + 1))};
  }
}

inline void give_pair(JobFacts& job, const char* slurm, const char* pmix) {
  for (RankFacts& rank : job.ranks) rank.pmix_version = pmix;
  for (NodeRecord& node : job.nodes) node.facts.slurm_version = slurm;
}

}  // namespace ddp::tools::doctor::test
