// Cases of the rules on RDMA devices, GPUs and PCIe.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {

std::vector<Case> device_faults() {
  return {
      {"rdma-unused", "NCCL_IB_DISABLE",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         set_all(job, "NCCL_IB_DISABLE", "1");
       }},
      {"rdma-unused", "NCCL_NET",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         set_all(job, "NCCL_NET", "socket");
       }},
      {"rdma-unused", "a filter that leaves none",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         set_all(job, "NCCL_IB_HCA", "^mlx5");
       }},
      {"hca-missing", "no such device",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         set_all(job, "NCCL_IB_HCA", "=mlx5_0:1,mlx5_7");
       }},
      {"hca-missing", "a port that is down",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         job.nodes[1].facts.rdma[1].state = "DOWN";
         set_all(job, "NCCL_IB_HCA", "mlx5_0,mlx5_1");
       }},
      {"link-layers-mixed", "one node has RoCE",
       [](auto& job) {
         give_rdma(job.nodes[0]);
         give_rdma(job.nodes[1], "Ethernet");
       }},
      {"gpus-hidden", "a cgroup shows each its own",
       [](auto& job) {
         give_gpus(job);
         for (RankFacts& rank : job.ranks) {
           rank.gpus = {rank.gpus[static_cast<std::size_t>(rank.local_rank)]};
           rank.gpus_allowed = 1;
         }
       }},
      {"gpu-shared", "one for both",
       [](auto& job) {
         give_gpus(job);
         for (RankFacts& rank : job.ranks) rank.gpus.resize(1);
       }},
      {"gpu-none", "one rank without",
       [](auto& job) {
         give_gpus(job);
         job.ranks[3].gpus.clear();
       }},
      {"gpu-models", "two kinds",
       [](auto& job) {
         give_gpus(job);
         job.ranks[3].gpu_models = {"A100", "A100"};
       }},
      {"gpu-direct", "no module",
       [](auto& job) {
         give_gpus(job);
         for (auto& node : job.nodes) {
           give_rdma(node);
           node.facts.nvidia_gpus = 2;
         }
       }},
      {"pci-acs", "a port redirects", [](auto& job) { job.nodes[0].facts.acs_ports = {"0000:01:00.0"}; }},
      {"iommu", "translated lazily", [](auto& job) { job.nodes[0].facts.iommu = "DMA-FQ"; }},
  };
}

std::vector<Case> device_near_misses() {
  return {
      {"rdma-unused", "NCCL_IB_DISABLE=true is 0",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         set_all(job, "NCCL_IB_DISABLE", "true");
       }},
      {"hca-missing", "a node without RDMA",
       [](auto& job) {
         give_rdma(job.nodes[0]);
         set_all(job, "NCCL_IB_HCA", "mlx5_0");
       }},
      {"gpus-hidden", "by a variable only",
       [](auto& job) {
         give_gpus(job);
         for (RankFacts& rank : job.ranks) rank.gpus = {rank.gpus[static_cast<std::size_t>(rank.local_rank)]};
       }},
      {"gpu-direct", "with nvidia_peermem",
       [](auto& job) {
         give_gpus(job);
         for (auto& node : job.nodes) {
           give_rdma(node);
           node.facts.nvidia_gpus = 2;
           node.facts.peer_memory = true;
         }
       }},
      {"gpu-direct", "GPUs of another vendor",
       [](auto& job) {
         give_gpus(job);
         for (auto& node : job.nodes) give_rdma(node);
       }},
      {"iommu", "passed through", [](auto& job) { job.nodes[0].facts.iommu = "identity"; }},
  };
}

}  // namespace ddp::tools::doctor::test
