// What a rule is tested with: a change of a healthy job, after which it alone speaks, or none does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "unit/tools/doctor/healthy_job.hpp"

namespace ddp::tools::doctor::test {

struct Case {
  const char* rule;  ///< the only one that is found, or that the change comes near to
  const char* what;
  std::function<void(JobFacts&)> change;
};

/// Of RDMA devices and GPUs.
std::vector<Case> device_faults();
std::vector<Case> device_near_misses();

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

}  // namespace ddp::tools::doctor::test
