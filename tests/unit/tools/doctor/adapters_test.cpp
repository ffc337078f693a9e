// NCCL's choice among RDMA adapters, as far as it is predicted: which are one, and which one each GPU gets.
#include <gmock/gmock.h>

#include "doctor/collect.hpp"
#include "doctor/nccl_adapters.hpp"
#include "doctor/nccl_rdma.hpp"
#include "support/checkout.hpp"
#include "unit/tools/doctor/rule_cases.hpp"
#include "unit/topology/machine_summary.hpp"

namespace ddp::tools::doctor {
namespace {

using test::set_all;

/// A job of one node, with a rank for each GPU, whose adapters are all active at one speed.
JobFacts job_on(const Topology& machine) {
  JobFacts job = test::healthy_job();
  job.nodes.resize(1);
  job.ranks.resize(1);
  job.nodes[0].ranks.clear();
  NodeFacts& node = job.nodes[0].facts;
  for (const Nic& nic : machine.nics()) {
    if (nic.rdma_device.empty() || !nic.usable) continue;
    node.rdma.push_back({.device = nic.rdma_device, .port = 1, .state = "ACTIVE", .link_layer = "InfiniBand"});
    node.rdma.back().rate_mbps = 400'000;
    if (nic.pci) node.rdma.back().pci = nic.pci->to_string();
  }
  collect_gpus(node, machine, static_cast<int>(machine.gpus().size()));
  const RankFacts first = job.ranks[0];
  job.ranks.clear();
  for (std::size_t i = 0; i < node.gpus.size(); ++i) {
    job.ranks.push_back(first);
    RankFacts& rank = job.ranks.back();
    rank.rank = rank.local_rank = static_cast<int>(i);
    for (const GpuFacts& gpu : node.gpus) rank.gpus.push_back(gpu.name);
    if (node.gpus[i].number < 0) node.gpus[i].number = static_cast<int>(i);
    job.nodes[0].ranks.push_back(rank.rank);
  }
  return job;
}

std::string taken(const JobFacts& job) {
  std::string text;
  for (const RankFacts& rank : job.ranks) {
    const auto devices = predict_adapters(job, rank);
    text += text.empty() ? "" : " ";
    if (!devices) text += "?";
    for (std::size_t i = 0; devices && i < devices->size(); ++i) text += (i > 0 ? "," : "") + (*devices)[i].name();
  }
  return text;
}

/// @p gpus and @p adapters that are all equally near.
JobFacts flat_job(int gpus, int adapters) {
  JobFacts job = test::healthy_job();
  job.nodes.resize(1);
  NodeRecord& node = job.nodes[0];
  for (int i = 0; i < adapters; ++i) {
    node.facts.rdma.push_back(
        {.device = "m" + std::to_string(i), .port = 1, .state = "ACTIVE", .link_layer = "InfiniBand"});
    node.facts.rdma.back().pci = "0000:0" + std::to_string(i) + ":00.0";
  }
  const RankFacts first = job.ranks[0];
  job.ranks.clear();
  node.ranks.clear();
  for (int i = 0; i < gpus; ++i) {
    node.facts.gpus.push_back({.name = "G" + std::to_string(i),
                               .number = i,
                               .numa_node = 0,
                               .paths = std::vector<Path>(static_cast<std::size_t>(adapters), Path::phb)});
    job.ranks.push_back(first);
    job.ranks.back().rank = job.ranks.back().local_rank = i;
    job.ranks.back().gpus = {"G" + std::to_string(i)};
    node.ranks.push_back(i);
  }
  return job;
}

// NCCL's graph/topo.cc, ncclTopoGetLocalNetType().
TEST(NcclAdapters, EquallyNearOnesAreGivenOutAsNcclDoes) {
  EXPECT_EQ(taken(flat_job(4, 4)), "m0 m2 m1 m3");  // bits mirrored
  EXPECT_EQ(taken(flat_job(2, 4)), "m0,m1 m2,m3");  // two for each
  EXPECT_EQ(taken(flat_job(4, 2)), "m0 m1 m0 m1");  // two GPUs share one
  EXPECT_EQ(taken(flat_job(3, 3)), "m0 m1 m2");     // no power of two: in order
  EXPECT_EQ(taken(flat_job(2, 3)), "m0,m1 m1,m2");  // rounded up
  JobFacts job = flat_job(2, 4);
  set_all(job, "NCCL_NETDEVS_POLICY", "max:1");
  EXPECT_EQ(taken(job), "m0 m2");
  set_all(job, "NCCL_NETDEVS_POLICY", "ALL");
  EXPECT_EQ(taken(job), "m0,m1,m2,m3 m2,m3,m0,m1");
}

TEST(NcclAdapters, PortsOfOneAreMerged) {
  JobFacts job = flat_job(2, 4);
  auto& ports = job.nodes[0].facts.rdma;
  ports[1].pci = "0000:00:00.1";
  ports[3].pci = "0000:02:00.1";
  EXPECT_EQ(taken(job), "m0+m1 m2+m3");
  set_all(job, "NCCL_IB_HCA", "^m1");
  EXPECT_EQ(taken(job), "? ?");  // of two speeds then
  set_all(job, "NCCL_NET_MERGE_LEVEL", "LOC");
  EXPECT_EQ(taken(job), "m0,m2 m2,m3");
  set_all(job, "NCCL_IB_HCA", "");
  set_all(job, "NCCL_NET_MERGE_LEVEL", "PORT");
  set_all(job, "NCCL_IB_MERGE_NICS", "0");
  EXPECT_EQ(taken(job), "m0,m1 m2,m3");
  set_all(job, "NCCL_IB_MERGE_NICS", "1");
  ports[1].link_layer = ports[3].link_layer = "Ethernet";  // InfiniBand is not merged with RoCE
  EXPECT_EQ(taken(job), "m0,m1 m2,m3");
}

TEST(NcclAdapters, OrderIsThatOfPci) {
  JobFacts job = flat_job(1, 2);
  std::swap(job.nodes[0].facts.rdma[0].pci, job.nodes[0].facts.rdma[1].pci);
  EXPECT_EQ(taken(job), "m1,m0");
  set_all(job, "NCCL_IB_DEVICE_PCI_ORDER", "0");
  EXPECT_EQ(taken(job), "m0,m1");
}

TEST(NcclAdapters, WhatCannotBeToldIsNotPredicted) {
  JobFacts job = flat_job(2, 2);
  job.nodes[0].facts.rdma[0].rate_mbps = 100'000;
  EXPECT_EQ(taken(job), "? ?");
  job = flat_job(2, 2);
  job.nodes[0].facts.gpus[1].paths[0] = Path::unknown;
  EXPECT_EQ(taken(job), "m0,m1 ?");
  job = flat_job(2, 2);
  job.ranks[0].gpus = {"G0", "G1", "G2"};  // more than ranks, of which a program may take any: its local rank's
  job.ranks[1].gpus.clear();
  EXPECT_EQ(taken(job), "m0,m1 ?");
  job = flat_job(2, 2);
  set_all(job, "NCCL_IB_DISABLE", "1");
  EXPECT_EQ(taken(job), "? ?");
}

// Of each machine that has RDMA adapters: NCCL, left alone, takes none that is further than what placement gives.
TEST(NcclAdapters, AreThoseOfThePlacementOnRecordedMachines) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(ddp::test::source_root() / "tests" / "topologies")) {
    files.push_back(entry.path());
  }
  if (const auto recorded = topology::recorded_machines()) {
    for (const auto& entry : std::filesystem::directory_iterator(*recorded)) files.push_back(entry.path());
  }
  int predicted = 0;
  for (const std::filesystem::path& file : files) {
    if (file.extension() != ".xml") continue;
    const JobFacts job = job_on(Topology::from_xml_file(file.string()));
    for (const RankFacts& rank : job.ranks) {
      const auto devices = predict_adapters(job, rank);
      const auto& placed = job.nodes[0].facts.placed;
      if (!devices || placed.at(static_cast<std::size_t>(rank.local_rank)).adapters.empty()) continue;
      ++predicted;
    }
    const auto found = examine(job, [](const Rule& rule) { return rule.id == "hca-far" || rule.id == "hca-other"; });
    for (const Finding& finding : found) {
      ADD_FAILURE() << file.filename() << ": " << finding.rule->id << ": " << finding.evidence;
    }
  }
  EXPECT_GT(predicted, 8);
}

TEST(NcclGids, AreChosenAsNcclDoes) {
  RankFacts rank;
  RdmaPortFacts port;
  port.gids_known = true;
  const std::string ll = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456";
  const std::string v6 = "2001:0db8:0000:0000:0000:0000:0000:0002";
  const std::string a = "0000:0000:0000:0000:0000:ffff:0a01:0002";
  const std::string b = "0000:0000:0000:0000:0000:ffff:0a02:0002";
  port.gids = {{0, "IB/RoCE v1", ll}, {1, "RoCE v2", ll}, {2, "IB/RoCE v1", a},
               {3, "RoCE v2", a},     {5, "RoCE v2", b},  {7, "RoCE v2", v6}};
  const auto row = [&](const char* name, const char* value) {
    rank.environment.clear();
    if (name != nullptr) rank.environment[name] = value;
    return predict_gid(port, rank, "2.28.9").value_or(-1);
  };
  EXPECT_EQ(row(nullptr, ""), 3);
  EXPECT_EQ(row("NCCL_IB_ROCE_VERSION_NUM", "1"), 2);
  EXPECT_EQ(row("NCCL_IB_ADDR_RANGE", "10.2.0.0/16"), 5);
  EXPECT_EQ(row("NCCL_IB_ADDR_RANGE", "10.0.0.0/8"), 3);
  EXPECT_EQ(row("NCCL_IB_ADDR_RANGE", "10.2.0.0/33"), 3);  // is ignored
  EXPECT_EQ(row("NCCL_IB_ADDR_RANGE", "192.168.0.0/16"), 0);
  EXPECT_EQ(row("NCCL_IB_ADDR_FAMILY", "AF_INET6"), 7);
  EXPECT_EQ(row("NCCL_IB_GID_INDEX", "5"), 5);
  EXPECT_EQ(predict_gid(port, RankFacts{}, "2.20.5"), 0);
  port.gids_cut = true;
  EXPECT_EQ(row(nullptr, ""), -1);
}

}  // namespace
}  // namespace ddp::tools::doctor
