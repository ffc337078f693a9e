// Each rule: what triggers it alone, and near misses that do not.
#include "cli/exit_error.hpp"
#include "doctor/doctor_command.hpp"
#include "doctor/nccl_network.hpp"
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor {
namespace {

using test::candidate;
using test::Case;
using test::give_network;
using test::give_pair;
using test::give_rdma;
using test::healthy_job;
using test::interface_of;
using test::reached;
using test::rules_found;
using test::set_all;

/// Found by the environment report, which the rules hand on.
constexpr std::array kOfTheReport{"env-differs", "env-nccl-version", "env-range",   "env-misspelt",
                                  "env-unknown", "env-unread",       "env-removed", "env-deprecated",
                                  "env-misread", "env-conf",         "env-size"};

std::vector<Case> reports() {
  std::vector<Case> cases;
  for (const char* id : kOfTheReport) {
    cases.push_back({id, "the environment report has it", [id](JobFacts& job) {
                       job.environment.push_back(
                           {.rule = id, .error = false, .variable = "A", .text = "A", .remedy = "B", .ranks = {1}});
                     }});
  }
  return cases;
}

std::vector<Case> faults() {
  std::vector<Case> cases = reports();
  const std::vector<Case> more{
      {"env-left-over", "peer access switched off", [](auto& job) { set_all(job, "NCCL_P2P_DISABLE", "1"); }},
      {"env-left-over", "an algorithm forced", [](auto& job) { set_all(job, "NCCL_ALGO", "Ring"); }},
      {"env-left-over", "a word in lower case", [](auto& job) { set_all(job, "TORCH_DISTRIBUTED_DEBUG", "detail"); }},
      {"env-left-over", "a number", [](auto& job) { set_all(job, "NCCL_SHM_DISABLE", "0x1"); }},
      {"memlock-rdma", "8 MiB with RDMA",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         job.ranks[2].memlock_bytes = 8 << 20;
       }},
      {"memlock", "64 KiB", [](auto& job) { job.ranks[1].memlock_bytes = 64 << 10; }},
      {"open-files", "256", [](auto& job) { job.ranks[1].open_files = 256; }},
      {"shm-size", "64 MiB in all", [](auto& job) { job.nodes[1].facts.shm_bytes = 64 << 20; }},
      {"shm-size", "64 MiB left", [](auto& job) { job.nodes[1].facts.shm_free_bytes = 64 << 20; }},
      {"shm-size", "none", [](auto& job) { job.nodes[1].facts.shm_bytes = job.nodes[1].facts.shm_free_bytes = -1; }},
      {"shm-private", "another device", [](auto& job) { job.ranks[3].shm_device = 26; }},
      {"namespaces", "another IPC namespace", [](auto& job) { job.ranks[3].namespaces["ipc"] = "ipc:[2]"; }},
      {"one-core", "one core, two threads",
       [](auto& job) {
         job.ranks[0].cpus = CpuSet::parse("0,64");
         job.ranks[0].cores = 1;
       }},
      {"one-core", "one processor, cores unknown",
       [](auto& job) {
         job.ranks[0].cpus = CpuSet::parse("0");
         job.ranks[0].cores = 0;
       }},
      {"cores-shared", "three ranks on two",
       [](auto& job) {
         RankFacts third = job.ranks[1];
         third.rank = 4;
         job.nodes[0].ranks.push_back(4);
         job.ranks.push_back(third);
         for (int rank : {0, 1, 4}) {
           job.ranks[static_cast<std::size_t>(rank)].cpus = CpuSet::parse("0-1");
           job.ranks[static_cast<std::size_t>(rank)].cores = 2;
         }
       }},
      {"cpu-quota", "two of eight", [](auto& job) { job.ranks[0].cpu_quota = 2; }},
      {"pids-limit", "100", [](auto& job) { job.ranks[0].pids_limit = 100; }},
      {"host-identity", "one name, one boot id",
       [](auto& job) {
         job.nodes[1].host = job.nodes[0].host;
         job.nodes[1].facts.boot_id = job.nodes[0].facts.boot_id;
       }},
      {"host-identity", "one NCCL_HOSTID", [](auto& job) { set_all(job, "NCCL_HOSTID", "7"); }},
      {"own-name", "127.0.1.1", [](auto& job) { job.nodes[1].facts.own_name.addresses = {"127.0.1.1"}; }},
      {"own-name", "does not resolve", [](auto& job) { job.nodes[1].facts.own_name.addresses.clear(); }},
      {"own-name", "Gloo is told an interface that is not there",
       [](auto& job) {
         job.nodes[1].facts.own_name.addresses = {"127.0.1.1"};
         set_all(job, "GLOO_SOCKET_IFNAME", "eth0,eth1");
       }},
      {"own-name", "one rank's Gloo is not told",
       [](auto& job) {
         job.nodes[1].facts.own_name.addresses.clear();
         job.ranks[2].environment["GLOO_SOCKET_IFNAME"] = "eth0";
       }},
      {"master-address", "localhost",
       [](auto& job) {
         set_all(job, "MASTER_ADDR", "localhost");
         for (auto& node : job.nodes) node.facts.master.addresses = {"127.0.0.1"};
       }},
      {"master-address", "does not resolve", [](auto& job) { set_all(job, "MASTER_ADDR", "nowhere"); }},
      {"master-port", "taken",
       [](auto& job) {
         set_all(job, "MASTER_PORT", "29500");
         job.nodes[0].facts.master_port_taken = true;
       }},
      {"clock-skew", "an hour behind", [](auto& job) { job.nodes[1].probes.clock_ms -= 3'600'000; }},
      {"kernels-differ", "5.14 and 6.1", [](auto& job) { job.nodes[1].facts.kernel = "5.14.0"; }},
      {"interface-missing", "a name that is not there", [](auto& job) { set_all(job, "NCCL_SOCKET_IFNAME", "ib0"); }},
      {"interface-missing", "the interface is down",
       [](auto& job) {
         set_all(job, "NCCL_SOCKET_IFNAME", "eth0");
         job.nodes[1].facts.interfaces[1].running = false;
       }},
      {"interface-missing", "Gloo's name is not there",
       [](auto& job) {
         job.nodes[1].facts.candidates.clear();
         job.nodes[1].facts.candidate_facts.clear();
         job.nodes[1].facts.candidates_failure = "GLOO_SOCKET_IFNAME=x names no interface of this host";
       }},
      {"interface-local", "docker0 first, after an exclusion",
       [](auto& job) {
         for (auto& node : job.nodes) {
           InterfaceFacts docker = interface_of("docker0", "172.17.0.1");
           docker.kind = InterfaceKind::host_only;
           node.facts.interfaces.insert(node.facts.interfaces.begin() + 1, docker);
         }
         set_all(job, "NCCL_SOCKET_IFNAME", "^lo");
       }},
      {"interface-local", "link-local only",
       [](auto& job) {
         InterfaceFacts idle = interface_of("eth1", "fe80::1");
         idle.addresses[0].ipv6 = true;
         job.nodes[0].facts.interfaces.push_back(idle);
       }},
      {"interface-unreachable", "a second network that leads nowhere",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         for (auto& node : job.nodes) node.probes.results[1].end = ProbeEnd::silent;
       }},
      {"interface-other", "libddp has a faster network", &test::give_faster_network},
      {"interface-prefix", "eth1 is also eth10",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         give_network(job, "eth10", "10.3.0.");
         set_all(job, "NCCL_SOCKET_IFNAME", "eth1,eth0");
       }},
      {"interfaces-one-subnet", "two of them", [](auto& job) { give_network(job, "eth1", "10.1.0.10"); }},
      {"mtu-differs", "9000 on one side", [](auto& job) { job.nodes[1].facts.interfaces[1].mtu = 9000; }},
      {"mtu-lost", "large packets", [](auto& job) { job.nodes[0].probes.results[0].packet = PacketEnd::lost; }},
      {"gpu-xid", "off the bus an hour ago",
       [](auto& job) { job.nodes[1].facts.xids = {{.gpu = "0000:3b:00", .number = 79, .times = 2, .age_s = 3700}}; }},
      {"path-slow", "1 Gbit/s between", [](auto& job) { job.nodes[0].probes.results[0].path_mbps = 940; }},
      {"address-duplicate", "one address twice",
       [](auto& job) {
         for (auto& node : job.nodes) {
           node.facts.interfaces[1].addresses[0].address = "10.1.0.9";
           node.facts.candidate_facts = {candidate("10.1.0.9")};
         }
       }},
      {"speed-differs", "10 of 100 Gbit/s", [](auto& job) { job.nodes[1].facts.interfaces[1].rate_mbps = 10'000; }},
      {"port-range", "a hundred", [](auto& job) { job.nodes[0].facts.port_high = 32867; }},
      {"libddp-versions", "two", [](auto& job) { job.ranks[3].version = "0.2.0"; }},
      {"slurm-pmix", "PMIx 5.0.8 hangs before Slurm 25.11.2", [](auto& job) { give_pair(job, "24.11.5", "5.0.8"); }},
      {"slurm-pmix", "Slurm 23.02.2's shared memory", [](auto& job) { give_pair(job, "23.02.2", "4.2.3"); }},
      {"slurm-pmix", "that of PMIx 5 before", [](auto& job) { give_pair(job, "23.02.1", "5.0.1"); }},
      {"slurm-pmix", "one rank still has shared memory",
       [](auto& job) {
         give_pair(job, "23.02.2", "4.2.3");
         set_all(job, "PMIX_MCA_gds", "hash");
         job.ranks[2].environment.erase("PMIX_MCA_gds");
       }},
      {"slurm-pmix", "the hang is not one of shared memory",
       [](auto& job) {
         give_pair(job, "23.02.2", "5.0.8");
         set_all(job, "PMIX_MCA_gds", "hash");
       }},
      {"env-proxy", "the other node is not exempt",
       [](auto& job) {
         job.ranks[1].environment["http_proxy"] = "http://proxy:3128";
         job.ranks[1].environment["no_proxy"] = "localhost,n10,1,other.n1";
       }},
      {"pmix-versions", "two", [](auto& job) { job.ranks[3].pmix_version = "5.0.1"; }},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  for (const auto& family :
       {test::device_faults(), test::nccl_faults(), test::adapter_faults(), test::fabric_faults()}) {
    cases.insert(cases.end(), family.begin(), family.end());
  }
  return cases;
}

TEST(DoctorRules, AHealthyJobHasNoFinding) { EXPECT_THAT(rules_found(healthy_job()), testing::IsEmpty()); }

TEST(DoctorRules, EachFaultIsFoundAndNothingElse) {
  std::set<std::string> tested;
  for (const Case& each : faults()) {
    JobFacts job = healthy_job();
    each.change(job);
    EXPECT_THAT(rules_found(job), testing::ElementsAre(each.rule)) << each.rule << ": " << each.what;
    tested.insert(each.rule);
  }
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) EXPECT_TRUE(tested.contains(std::string(rule.id))) << rule.id;
  }
}

TEST(DoctorRules, WhatComesNearIsNoFault) {
  std::set<std::string> tested(kOfTheReport.begin(), kOfTheReport.end());  // tests/unit/diagnostics tests these
  std::vector<Case> cases = test::near_misses();
  for (const auto& family : {test::device_near_misses(), test::nccl_near_misses(), test::adapter_near_misses(),
                             test::fabric_near_misses()}) {
    cases.insert(cases.end(), family.begin(), family.end());
  }
  for (const Case& each : cases) {
    JobFacts job = healthy_job();
    each.change(job);
    EXPECT_THAT(rules_found(job), testing::IsEmpty()) << each.rule << ": " << each.what;
    tested.insert(each.rule);
  }
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) EXPECT_TRUE(tested.contains(std::string(rule.id))) << rule.id;
  }
}

TEST(DoctorRules, OneNodeAloneHasNoNetworkToBeWrong) {
  JobFacts job = healthy_job();
  job.nodes.resize(1);
  job.ranks.resize(2);
  job.nodes[0].probes.results.clear();
  job.nodes[0].facts.own_name.addresses = {"127.0.1.1"};
  job.nodes[0].facts.interfaces = {test::loopback()};
  EXPECT_THAT(rules_found(job), testing::IsEmpty());
  // Two interfaces in one subnet are not a fault either if no connection uses them.
  job.nodes[0].facts.interfaces = {test::loopback(), interface_of("eth0", "10.1.0.1"),
                                   interface_of("eth1", "10.1.0.2")};
  EXPECT_THAT(rules_found(job), testing::IsEmpty());
}

// Names the isolated node, not the nodes that it was tried with.
TEST(DoctorRules, ANodeThatNobodyReachesIsNamedAlone) {
  JobFacts job = healthy_job();
  NodeRecord third = job.nodes[1];
  third.host = "n2";
  third.ranks = {4};
  third.facts.own_name.addresses = {"10.1.0.3"};
  third.facts.boot_id = "boot2";
  third.facts.interfaces[1].addresses[0].address = "10.1.0.3";
  third.facts.candidate_facts = {candidate("10.1.0.3")};
  third.probes.results = {reached(0, "eth0", "10.1.0.1"), reached(1, "eth0", "10.1.0.2")};
  for (ProbeResult& result : third.probes.results) result.end = ProbeEnd::silent;
  for (NodeRecord& node : job.nodes) {
    node.probes.results.push_back(reached(2, "eth0", "10.1.0.3"));
    node.probes.results.back().end = ProbeEnd::silent;
  }
  RankFacts rank = job.ranks[3];
  rank.rank = 4;
  rank.node = 2;
  job.nodes.push_back(third);
  job.ranks.push_back(rank);
  const auto found = test::findings_of(job);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rule->id, "interface-unreachable");
  EXPECT_THAT(found[0].hosts, testing::ElementsAre("n2"));
  EXPECT_THAT(found[0].evidence, testing::HasSubstr("any other node"));
}

// Without RDMA, NCCL's data uses every interface, not only the first.
TEST(DoctorRules, AnInterfaceThatLeadsNowhereIsFoundBesideRdmaThatNcclDoesNotTake) {
  const auto second_network_fails = [](const char* name, const char* value) {
    JobFacts job = healthy_job();
    for (auto& node : job.nodes) give_rdma(node);
    give_network(job, "eth1", "10.2.0.");
    for (auto& node : job.nodes) node.probes.results[1].end = ProbeEnd::silent;
    set_all(job, name, value);
    return rules_found(job);
  };
  EXPECT_THAT(second_network_fails("NCCL_IB_DISABLE", "0"), testing::IsEmpty());
  const auto both = testing::ElementsAre("interface-unreachable", "rdma-unused");
  EXPECT_THAT(second_network_fails("NCCL_IB_DISABLE", "1"), both);
  EXPECT_THAT(second_network_fails("NCCL_NET", "Socket"), both);
  EXPECT_THAT(second_network_fails("NCCL_IB_HCA", "^mlx5"), both);
}

TEST(DoctorRules, EqualFindingsOfRanksAreOne) {
  JobFacts job = healthy_job();
  for (const std::size_t rank : {3U, 1U}) job.ranks[rank].memlock_bytes = 65536;
  job.nodes[1].facts.shm_bytes = 1 << 20;
  const auto found = test::findings_of(job);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].rule->id, "shm-size");  // errors first
  EXPECT_THAT(found[1].ranks, testing::ElementsAre(1, 3));
  EXPECT_THAT(found[1].hosts, testing::ElementsAre("n0", "n1"));
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

// The command line of ddp-info doctor.

namespace {

std::string refusal(const std::vector<std::string>& words) {
  try {
    parse_doctor_options(words);
  } catch (const cli::UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(DoctorOptions, ChooseRulesAndWhatCounts) {
  const DoctorOptions all = parse_doctor_options({});
  EXPECT_EQ(all.fail_on, Severity::warning);
  EXPECT_FALSE(all.json || all.no_job || !all.help.empty() || all.rules);
  const std::vector<std::string> words{"--json",    "--rule", "shm-size,memlock", "--rule=one-core", "--skip=memlock",
                                       "--fail-on", "error"};
  const DoctorOptions some = parse_doctor_options(words);
  EXPECT_TRUE(some.json);
  EXPECT_EQ(some.fail_on, Severity::error);
  std::string wanted;
  for (const Family& family : families()) {
    for (const Rule& rule : family.rules) {
      EXPECT_TRUE(all.wants(rule));
      if (some.wants(rule)) wanted += std::string(rule.id) + " ";
    }
  }
  EXPECT_EQ(wanted, "shm-size one-core ");
  EXPECT_EQ(parse_doctor_options(std::vector<std::string>{"--fail-on=never"}).fail_on, std::nullopt);
  EXPECT_EQ(parse_doctor_options(std::vector<std::string>{"--expl", "iommu"}).explain->id, "iommu");
}

TEST(DoctorOptions, WrongOnesAreRefused) {
  EXPECT_THAT(refusal({"--rule", "shm-sice"}), HasSubstr("did you mean 'shm-size'"));
  EXPECT_THAT(refusal({"--rule="}), HasSubstr("there is no rule ''"));
  EXPECT_THAT(refusal({"--fail-on", "all"}), HasSubstr("'all' is not one of"));
  EXPECT_THAT(refusal({"--json=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(refusal({"--skip"}), HasSubstr("needs a value"));
  EXPECT_THAT(refusal({"n0"}), HasSubstr("is not an option"));
}

}  // namespace

}  // namespace ddp::tools::doctor
