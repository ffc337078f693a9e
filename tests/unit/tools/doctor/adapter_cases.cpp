// Cases of the rules on the RDMA adapters that NCCL may use, and on places of GPUs.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {
namespace {

constexpr const char* kIpv6 = "2001:0db8:0000:0000:0000:0000:0000:0002";

/// On each node two GPUs with an adapter beside each, the ones on the other processor.
void give_machine(JobFacts& job) {
  give_gpus(job);
  for (std::size_t number = 0; number < job.nodes.size(); ++number) {
    NodeRecord& node = job.nodes[number];
    give_rdma(node);
    const std::string gpu = "GPU-" + std::to_string(number);
    node.facts.gpus = {
        {.name = gpu + "a", .numa_node = 0, .cpus = CpuSet::parse("0-7"), .paths = {Path::pix, Path::sys}},
        {.name = gpu + "b", .numa_node = 1, .cpus = CpuSet::parse("8-15"), .paths = {Path::sys, Path::pix}}};
    node.facts.rdma[0].pci = "0000:10:00.0";
    node.facts.rdma[1].pci = "0000:90:00.0";
    for (RdmaPortFacts& port : node.facts.rdma) port.rate_mbps = 400'000;
  }
}

/// RoCE ports with an address of version 2 in row 3.
void give_roce_rows(JobFacts& job, const char* first, const char* second) {
  for (NodeRecord& node : job.nodes) {
    give_rdma(node, "Ethernet");
    for (RdmaPortFacts& port : node.facts.rdma) port.gids_known = true;
    node.facts.rdma[0].gids = {{.index = 3, .type = "RoCE v2", .gid = first}};
    node.facts.rdma[1].gids = {{.index = 3, .type = "RoCE v2", .gid = second}};
  }
}

/// A RoCE adapter in each of two networks, of which the node has an interface.
void give_rails(JobFacts& job) {
  give_roce_rows(job, "0000:0000:0000:0000:0000:ffff:0a05:0001", "0000:0000:0000:0000:0000:ffff:0a06:0001");
  for (std::size_t number = 0; number < 2; ++number) {
    NodeFacts& node = job.nodes[number].facts;
    for (const char* subnet : {"10.5.0.", "10.6.0."}) {
      const std::string address = subnet + std::to_string(number + 1);
      node.interfaces.push_back(interface_of(subnet[3] == '5' ? "eth5" : "eth6", address));
    }
    node.rdma[0].gids[0].gid.back() = node.rdma[1].gids[0].gid.back() = static_cast<char>('1' + number);
  }
  set_all(job, "NCCL_CROSS_NIC", "1");
}

void give_partition(JobFacts& job, std::vector<std::int64_t> keys) {
  for (NodeRecord& node : job.nodes) {
    give_rdma(node);
    for (RdmaPortFacts& port : node.facts.rdma) port.pkeys = keys;
  }
}

}  // namespace

std::vector<Case> adapter_faults() {
  return {
      {"hca-far", "the filter leaves the far one",
       [](auto& job) {
         give_machine(job);
         set_all(job, "NCCL_IB_HCA", "=mlx5_0");
       }},
      {"hca-counts", "one of two is down",
       [](auto& job) {
         give_machine(job);
         for (NodeRecord& node : job.nodes) node.facts.gpus.clear();
         job.nodes[1].facts.rdma[1].state = "DOWN";
       }},
      {"rails-crossed", "NCCL_CROSS_NIC", &give_rails},
      {"rails-crossed", "NCCL_PXN_DISABLE between InfiniBand subnets",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           node.facts.rdma[0].subnet = "fe80:0000:0000:0001";
           node.facts.rdma[1].subnet = "fe80:0000:0000:0002";
         }
         set_all(job, "NCCL_PXN_DISABLE", "1");
       }},
      {"hca-prefix", "mlx5_1 is also mlx5_10",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           node.facts.rdma.push_back(node.facts.rdma[1]);
           node.facts.rdma.back().device = "mlx5_10";
         }
         set_all(job, "NCCL_IB_HCA", "mlx5_0,mlx5_1");
       }},
      {"rdma-unused", "no device files in a container",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) give_rdma(node);
         for (RankFacts& rank : job.ranks) rank.verbs_problem = "there is no /dev/infiniband/uverbs*";
       }},
      {"roce-gid", "NCCL stays at a link-local address that comes first",
       [](auto& job) {
         give_roce_rows(job, "0000:0000:0000:0000:0000:ffff:a9fe:0001", "0000:0000:0000:0000:0000:ffff:a9fe:0002");
         for (NodeRecord& node : job.nodes) {
           for (RdmaPortFacts& port : node.facts.rdma) {
             port.gids.push_back({.index = 5, .type = "RoCE v2", .gid = "0000:0000:0000:0000:0000:ffff:0a01:0002"});
           }
         }
       }},
      {"roce-gid", "NCCL before 2.21 takes row 0",
       [](auto& job) {
         give_roce_rows(job, kIpv4Gid, kIpv4Gid);
         give_nccl(job, "2.20.5+cuda12.4");
       }},
      {"roce-gid-set", "with NCCL 2.27",
       [](auto& job) {
         give_roce_rows(job, kIpv4Gid, kIpv4Gid);
         set_all(job, "NCCL_IB_GID_INDEX", "3");
         give_nccl(job, "2.27.5+cuda12.9");
       }},
      {"roce-gid-family", "the row is IPv6 on one adapter",
       [](auto& job) {
         give_roce_rows(job, kIpv4Gid, kIpv6);
         set_all(job, "NCCL_IB_GID_INDEX", "3");
       }},
      {"ib-partition", "a limited member", [](auto& job) { give_partition(job, {0x7fff}); }},
      {"ib-partition", "an empty row",
       [](auto& job) {
         give_partition(job, {0xffff});
         set_all(job, "NCCL_IB_PKEY", "1");
       }},
      {"ib-partition", "another one on one node",
       [](auto& job) {
         give_partition(job, {0xffff});
         for (RdmaPortFacts& port : job.nodes[1].facts.rdma) port.pkeys = {0x8001};
       }},
      {"gpu-cores", "on the other processor",
       [](auto& job) {
         give_machine(job);
         job.ranks[1].cpus = CpuSet::parse("0-7");
         job.ranks[0].cpus = CpuSet::parse("0-15");
       }},
      {"cumem-host", "memory of the other node only",
       [](auto& job) {
         give_machine(job);
         give_nccl(job, "2.27.5+cuda12.9");
         for (NodeRecord& node : job.nodes) node.facts.nvidia_gpus = 2, node.facts.peer_memory = true;
         for (RankFacts& rank : job.ranks) rank.memory_nodes = CpuSet::parse("0");
       }},
      {"cumem-host", "a kernel without NUMA",
       [](auto& job) {
         give_gpus(job);
         give_nccl(job, "2.27.5+cuda12.9");
         for (NodeRecord& node : job.nodes) node.facts.nvidia_gpus = 2, node.facts.numa = false;
       }},
      {"drivers-differ", "two",
       [](auto& job) {
         job.nodes[0].facts.nvidia_driver = "550.54.15";
         job.nodes[1].facts.nvidia_driver = "570.86.10";
       }},
      {"firmware-differs", "two of one board",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           for (RdmaPortFacts& port : node.facts.rdma) port.board = "MT_0000000838", port.firmware = "28.39.1002";
         }
         job.nodes[1].facts.rdma[0].firmware = "28.36.1010";
       }},
  };
}

std::vector<Case> adapter_near_misses() {
  return {
      {"hca-far", "each takes its own", &give_machine},
      {"hca-far", "the near one is down everywhere",
       [](auto& job) {
         give_machine(job);
         for (NodeRecord& node : job.nodes) node.facts.rdma[0].state = "DOWN";
       }},
      {"hca-far", "the near one is for management",
       [](auto& job) {
         give_machine(job);
         for (NodeRecord& node : job.nodes) node.facts.rdma[0].rate_mbps = 25'000;
         set_all(job, "NCCL_IB_HCA", "=mlx5_1");
       }},
      {"hca-counts", "two ports of one adapter are one",
       [](auto& job) {
         give_machine(job);
         for (NodeRecord& node : job.nodes) node.facts.gpus.clear();
         RdmaPortFacts second = job.nodes[1].facts.rdma[1];
         second.device = "mlx5_2";
         second.pci.back() = '1';
         job.nodes[1].facts.rdma.push_back(second);
       }},
      {"rails-crossed", "a gateway leads on",
       [](auto& job) {
         give_rails(job);
         for (NodeRecord& node : job.nodes) node.facts.gateways = {"eth5", "eth6"};
       }},
      {"rails-crossed", "adapters of one network",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           for (RdmaPortFacts& port : node.facts.rdma) port.subnet = "fe80:0000:0000:0000";
         }
         set_all(job, "NCCL_CROSS_NIC", "1");
       }},
      {"rails-crossed", "NCCL decides",
       [](auto& job) {
         give_rails(job);
         set_all(job, "NCCL_CROSS_NIC", "2");
       }},
      {"hca-prefix", "exact, or a prefix for all",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           node.facts.rdma[0].device = "mlx5_10";
         }
         for (RankFacts& rank : job.ranks) rank.environment["NCCL_IB_HCA"] = "mlx5";
       }},
      {"rdma-unused", "no device files, but no RDMA either",
       [](auto& job) {
         for (RankFacts& rank : job.ranks) rank.verbs_problem = "there is no /dev/infiniband/uverbs*";
       }},
      {"roce-gid", "a range chooses among two networks",
       [](auto& job) {
         give_roce_rows(job, "0000:0000:0000:0000:0000:ffff:a9fe:0001", "0000:0000:0000:0000:0000:ffff:a9fe:0002");
         for (NodeRecord& node : job.nodes) {
           for (RdmaPortFacts& port : node.facts.rdma) {
             port.gids.push_back({.index = 5, .type = "RoCE v2", .gid = "0000:0000:0000:0000:0000:ffff:0a01:0002"});
           }
         }
         set_all(job, "NCCL_IB_ADDR_RANGE", "10.1.0.0/16");
       }},
      {"roce-gid-set", "with NCCL 2.20, which needs it",
       [](auto& job) {
         give_roce_rows(job, kIpv4Gid, kIpv4Gid);
         set_all(job, "NCCL_IB_GID_INDEX", "3");
         give_nccl(job, "2.20.5+cuda12.4");
       }},
      {"roce-gid-family", "IPv6 on all",
       [](auto& job) {
         give_roce_rows(job, kIpv6, kIpv6);
         set_all(job, "NCCL_IB_ADDR_FAMILY", "AF_INET6");
       }},
      {"ib-partition", "a second one is asked for, and there",
       [](auto& job) {
         give_partition(job, {0x7fff, 0x8005});
         set_all(job, "NCCL_IB_PKEY", "1");
       }},
      {"ib-partition", "on a node that takes no RDMA",
       [](auto& job) {
         give_partition(job, {0x7fff});
         for (NodeRecord& node : job.nodes) {
           for (RdmaPortFacts& port : node.facts.rdma) port.state = "DOWN";
         }
       }},
      {"gpu-cores", "asked to ignore it",
       [](auto& job) {
         give_machine(job);
         job.ranks[1].cpus = CpuSet::parse("0-7");
         job.ranks[0].cpus = CpuSet::parse("0-15");
         set_all(job, "NCCL_IGNORE_CPU_AFFINITY", "1");
       }},
      {"cumem-host", "switched off",
       [](auto& job) {
         give_machine(job);
         give_nccl(job, "2.27.5+cuda12.9");
         for (NodeRecord& node : job.nodes) node.facts.nvidia_gpus = 2, node.facts.peer_memory = true;
         for (RankFacts& rank : job.ranks) rank.memory_nodes = CpuSet::parse("0");
         set_all(job, "NCCL_CUMEM_HOST_ENABLE", "0");
       }},
      {"drivers-differ", "one without GPUs", [](auto& job) { job.nodes[0].facts.nvidia_driver = "550.54.15"; }},
      {"firmware-differs", "of two boards",
       [](auto& job) {
         for (NodeRecord& node : job.nodes) {
           give_rdma(node);
           for (RdmaPortFacts& port : node.facts.rdma) port.board = "A", port.firmware = "1";
         }
         for (RdmaPortFacts& port : job.nodes[1].facts.rdma) port.board = "B", port.firmware = "2";
       }},
  };
}

}  // namespace ddp::tools::doctor::test
