// Cases of the rules on RDMA devices, GPUs and PCIe.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {
namespace {

constexpr const char* kIpv4 = "0000:0000:0000:0000:0000:ffff:0a01:0002";
constexpr const char* kLinkLocal = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456";
constexpr const char* kGlobal = "2001:0db8:0000:0000:0000:0000:0000:0002";

/// The usual table of a RoCE port: each address as version 1 and 2.
std::vector<GidFacts> table(const char* address) {
  return {{.index = 0, .type = "IB/RoCE v1", .gid = kLinkLocal},
          {.index = 1, .type = "RoCE v2", .gid = kLinkLocal},
          {.index = 2, .type = "IB/RoCE v1", .gid = address},
          {.index = 3, .type = "RoCE v2", .gid = address}};
}

void give_roce(JobFacts& job, const char* address = kIpv4) {
  for (auto& node : job.nodes) {
    give_rdma(node, "Ethernet");
    for (RdmaPortFacts& port : node.facts.rdma) port.gids_known = true, port.gids = table(address);
  }
}

/// All ranks of the first node see a GPU with that fault.
void give_fault(JobFacts& job, const topology::GpuHealth& health) {
  give_gpus(job);
  for (std::size_t rank : {0U, 1U}) job.ranks[rank].gpu_health = {health, {.name = "GPU-0b"}};
}

}  // namespace

std::vector<Case> device_faults() {
  return {
      {"roce-gid", "no IPv4 address", [](auto& job) { give_roce(job, kGlobal); }},
      {"roce-gid", "an empty table in a container",
       [](auto& job) {
         give_roce(job);
         job.nodes[1].facts.rdma[0].gids.clear();
       }},
      {"roce-gid-index", "a row that one node lacks",
       [](auto& job) {
         give_roce(job);
         job.nodes[1].facts.rdma[1].gids.pop_back();
         set_all(job, "NCCL_IB_GID_INDEX", "3");
       }},
      {"roce-gid-index", "an empty row before those that were left out",
       [](auto& job) {
         give_roce(job);
         RdmaPortFacts& port = job.nodes[1].facts.rdma[1];
         port.gids.back().index = 9;
         port.gids_cut = true;
         set_all(job, "NCCL_IB_GID_INDEX", "3");
       }},
      {"roce-gid-index", "version 1",
       [](auto& job) {
         give_roce(job);
         set_all(job, "NCCL_IB_GID_INDEX", "2");
       }},
      {"roce-gid-index", "link-local",
       [](auto& job) {
         give_roce(job);
         set_all(job, "NCCL_IB_GID_INDEX", "1");
       }},
      {"gpu-memory", "uncorrected errors",
       [](auto& job) { give_fault(job, {.name = "GPU-0a", .uncorrected_errors = 2}); }},
      {"gpu-memory", "no spare rows", [](auto& job) { give_fault(job, {.name = "GPU-0a", .remap_failed = true}); }},
      {"gpu-reset", "a row waits", [](auto& job) { give_fault(job, {.name = "GPU-0a", .remap_pending = true}); }},
      {"gpu-slow", "heat", [](auto& job) { give_fault(job, {.name = "GPU-0a", .slowed_by = 0x60}); }},
      {"gpu-slow", "power brake", [](auto& job) { give_fault(job, {.name = "GPU-0a", .slowed_by = 0x88}); }},
      {"gpu-persistence", "off", [](auto& job) { give_fault(job, {.name = "GPU-0a", .persistent = false}); }},
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
      {"roce-gid", "an IPv4 address of version 2", [](auto& job) { give_roce(job); }},
      {"roce-gid", "IPv6, as asked",
       [](auto& job) {
         give_roce(job, kGlobal);
         set_all(job, "NCCL_IB_ADDR_FAMILY", "AF_INET6");
       }},
      {"roce-gid", "a port that NCCL does not take",
       [](auto& job) {
         give_roce(job);
         for (auto& node : job.nodes) node.facts.rdma[1].gids.clear();
         set_all(job, "NCCL_IB_HCA", "=mlx5_0");
       }},
      {"roce-gid", "tables that the kernel does not show",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node, "Ethernet");
         set_all(job, "NCCL_IB_GID_INDEX", "9");
       }},
      {"roce-gid", "a usable row may be among those that were left out",
       [](auto& job) {
         give_roce(job, kGlobal);
         for (auto& node : job.nodes) {
           for (RdmaPortFacts& port : node.facts.rdma) port.gids_cut = true;
         }
       }},
      {"roce-gid-index", "a row that was left out",
       [](auto& job) {
         give_roce(job);
         for (auto& node : job.nodes) {
           for (RdmaPortFacts& port : node.facts.rdma) port.gids_cut = true;
         }
         set_all(job, "NCCL_IB_GID_INDEX", "17");
       }},
      {"roce-gid-index", "the right row",
       [](auto& job) {
         give_roce(job);
         set_all(job, "NCCL_IB_GID_INDEX", "3");
       }},
      {"gpu-slow", "idle, or a power limit that is wanted",
       [](auto& job) { give_fault(job, {.name = "GPU-0a", .slowed_by = 0x7 | 0x10 | 0x100}); }},
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
      {"link-layers-mixed", "the Ethernet port is down, or not taken",
       [](auto& job) {
         for (auto& node : job.nodes) {
           give_rdma(node);
           node.facts.rdma[1].link_layer = "Ethernet";
         }
         job.nodes[1].facts.rdma[1].state = "DOWN";
         for (std::size_t rank : {0U, 1U}) job.ranks[rank].environment["NCCL_IB_HCA"] = "=mlx5_0";
       }},
      {"gpu-shared", "both ranks see both", [](auto& job) { give_gpus(job); }},
      {"gpu-none", "no rank has one",
       [](auto& job) {
         give_gpus(job);
         for (RankFacts& rank : job.ranks) {
           rank.gpus.clear();
           rank.gpu_models.clear();
         }
       }},
      {"gpu-models", "unknown on one rank",
       [](auto& job) {
         give_gpus(job);
         job.ranks[3].gpu_models.clear();
       }},
      {"pci-acs", "an IOMMU that passes through, and no port that redirects",
       [](auto& job) {
         give_gpus(job);
         for (auto& node : job.nodes) node.facts.iommu = "identity";
       }},
      {"gpu-memory", "no error", [](auto& job) { give_fault(job, {.name = "GPU-0a", .uncorrected_errors = 0}); }},
      {"gpu-reset", "no row waits", [](auto& job) { give_fault(job, {.name = "GPU-0a", .remap_pending = false}); }},
      {"gpu-persistence", "NVML does not say", [](auto& job) { give_gpus(job); }},
      {"iommu", "passed through", [](auto& job) { job.nodes[0].facts.iommu = "identity"; }},
  };
}

}  // namespace ddp::tools::doctor::test
