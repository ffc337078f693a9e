// What comes near to a fault and is none, for the rules but those on NCCL, RDMA devices and GPUs.
#include "unit/tools/doctor/rule_cases.hpp"

namespace ddp::tools::doctor::test {

std::vector<Case> near_misses() {
  return {
      {"env-left-over", "switched on again", [](auto& job) { set_all(job, "NCCL_SHM_DISABLE", "0"); }},
      {"env-left-over", "words are 0", [](auto& job) { set_all(job, "NCCL_SHM_DISABLE", "true"); }},
      {"env-left-over", "only 1 counts", [](auto& job) { set_all(job, "NCCL_P2P_DISABLE", "2"); }},
      {"own-name", "the resolver was too slow",
       [](auto& job) {
         job.nodes[1].facts.own_name = {.unanswered = true};
         set_all(job, "MASTER_ADDR", "n0");
         for (auto& node : job.nodes) node.facts.master = {.unanswered = true};
       }},
      {"own-name", "Gloo is told the interface",
       [](auto& job) {
         job.nodes[1].facts.own_name.addresses = {"127.0.1.1"};
         for (std::size_t rank : {2U, 3U}) job.ranks[rank].environment["GLOO_SOCKET_IFNAME"] = "eth0";
       }},
      {"master-address", "Debian's 127.0.1.1 on that host itself",
       [](auto& job) {
         set_all(job, "MASTER_ADDR", "n0.cluster");
         job.nodes[0].facts.master.addresses = {"127.0.1.1"};
         job.nodes[1].facts.master.addresses = {"10.1.0.1"};
       }},
      {"memlock", "8 MiB without RDMA", [](auto& job) { job.ranks[1].memlock_bytes = 8 << 20; }},
      {"memlock-rdma", "RDMA that is down",
       [](auto& job) {
         give_rdma(job.nodes[0]);
         for (auto& port : job.nodes[0].facts.rdma) port.state = "DOWN";
         job.ranks[0].memlock_bytes = 8 << 20;
       }},
      {"open-files", "1024", [](auto& job) { job.ranks[1].open_files = 1024; }},
      {"shm-size", "128 MiB for two",
       [](auto& job) {
         job.nodes[1].facts.shm_bytes = 128 << 20;
         job.nodes[1].facts.shm_free_bytes = 128 << 20;
       }},
      {"namespaces", "mounts may differ", [](auto& job) { job.ranks[3].namespaces["mnt"] = "mnt:[2]"; }},
      {"cores-shared", "two on two",
       [](auto& job) {
         for (RankFacts& rank : job.ranks) {
           rank.cpus = CpuSet::parse("0-1");
           rank.cores = 2;
         }
       }},
      {"cpu-quota", "as many as processors", [](auto& job) { job.ranks[0].cpu_quota = 8; }},
      {"host-identity", "one boot id, two names", [](auto& job) { job.nodes[1].facts.boot_id = "boot0"; }},
      {"clock-skew", "a second", [](auto& job) { job.nodes[1].probes.clock_ms += 1000; }},
      {"interface-local", "docker0, which NCCL leaves out",
       [](auto& job) {
         InterfaceFacts docker = interface_of("docker0", "172.17.0.1");
         docker.kind = InterfaceKind::host_only;
         job.nodes[0].facts.interfaces.push_back(docker);
       }},
      {"interface-local", "link-local only, beside RDMA",
       [](auto& job) {
         for (auto& node : job.nodes) give_rdma(node);
         job.nodes[0].facts.interfaces.push_back(interface_of("eth1", "169.254.0.1"));
       }},
      {"interface-prefix", "a prefix for both",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         set_all(job, "NCCL_SOCKET_IFNAME", "eth");
       }},
      {"interface-other", "NCCL only begins there, its data takes RDMA",
       [](auto& job) {
         give_faster_network(job);
         for (auto& node : job.nodes) give_rdma(node);
       }},
      {"interfaces-one-subnet", "with strict ARP",
       [](auto& job) {
         give_network(job, "eth1", "10.1.0.10");
         for (auto& node : job.nodes) {
           for (auto& interface : node.facts.interfaces) interface.arp_ignore = 1, interface.arp_announce = 2;
         }
       }},
      {"mtu-lost", "nothing was answered",
       [](auto& job) { job.nodes[0].probes.results[0].packet = PacketEnd::untested; }},
      {"gpu-xid", "two days ago",
       [](auto& job) { job.nodes[1].facts.xids = {{.gpu = "0000:3b:00", .number = 79, .times = 1, .age_s = 172800}}; }},
      {"path-slow", "the interfaces are no faster",
       [](auto& job) {
         job.nodes[0].probes.results[0].rate_mbps = 1000;
         job.nodes[0].probes.results[0].path_mbps = 300;
       }},
      {"path-slow", "no train has come through", [](auto& job) { job.nodes[0].probes.results[0].path_mbps = 0; }},
      {"slurm-pmix", "pairs that work", [](auto& job) { give_pair(job, "24.11.5", "5.0.7"); }},
      {"slurm-pmix", "fixed by Slurm", [](auto& job) { give_pair(job, "25.11.2", "6.1.0"); }},
      {"slurm-pmix", "23.02.2 sets what PMIx 5 needs", [](auto& job) { give_pair(job, "23.02.2", "5.0.1"); }},
      {"slurm-pmix", "hash in place of shared memory",
       [](auto& job) {
         give_pair(job, "23.02.2", "4.2.3");
         set_all(job, "PMIX_MCA_gds", "hash");
       }},
      {"env-proxy", "the nodes are exempt, by name, domain or all of them",
       [](auto& job) {
         for (RankFacts& rank : job.ranks) rank.environment["https_proxy"] = "http://proxy:3128";
         job.ranks[0].environment["no_proxy"] = "localhost, n1 ,n0";
         job.ranks[1].environment["NO_PROXY"] = "*";
         job.ranks[2].environment["no_proxy"] = "n0";
         job.ranks[3].environment["no_proxy"] = "n0";
       }},
      {"pmix-versions", "unknown on one", [](auto& job) { job.ranks[3].pmix_version.clear(); }},
      {"shm-private", "two machines have two",
       [](auto& job) { job.ranks[2].shm_device = job.ranks[3].shm_device = 26; }},
      {"one-core", "two processors, cores unknown",
       [](auto& job) {
         job.ranks[0].cpus = CpuSet::parse("0-1");
         job.ranks[0].cores = 0;
       }},
      {"pids-limit", "256 for each of two", [](auto& job) { job.ranks[0].pids_limit = 512; }},
      {"master-port", "given, and free", [](auto& job) { set_all(job, "MASTER_PORT", "29500"); }},
      {"kernels-differ", "all have another one",
       [](auto& job) {
         for (auto& node : job.nodes) node.facts.kernel = "5.14.0";
       }},
      {"interface-missing", "one of the list, by its beginning",
       [](auto& job) { set_all(job, "NCCL_SOCKET_IFNAME", "ib0,eth"); }},
      {"interface-missing", "another interface is down",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         job.nodes[1].facts.interfaces.back().running = false;
       }},
      {"interface-unreachable", "a network that leads nowhere, and that nobody uses",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         for (auto& node : job.nodes) node.probes.results[1].end = ProbeEnd::silent;
         set_all(job, "NCCL_SOCKET_IFNAME", "=eth0");
       }},
      {"mtu-differs", "between networks",
       [](auto& job) {
         give_network(job, "eth1", "10.2.0.");
         for (auto& node : job.nodes) node.facts.interfaces.back().mtu = 9000;
       }},
      {"address-duplicate", "that of docker0 on every host",
       [](auto& job) {
         for (auto& node : job.nodes) {
           InterfaceFacts docker = interface_of("docker0", "172.17.0.1");
           docker.kind = InterfaceKind::host_only;
           node.facts.interfaces.push_back(docker);
         }
       }},
      {"speed-differs", "60 of 100 Gbit/s", [](auto& job) { job.nodes[1].facts.interfaces[1].rate_mbps = 60'000; }},
      {"speed-differs", "unknown", [](auto& job) { job.nodes[1].facts.interfaces[1].rate_mbps = 0; }},
      {"port-range", "4096", [](auto& job) { job.nodes[0].facts.port_high = job.nodes[0].facts.port_low + 4095; }},
      {"libddp-versions", "unknown on one", [](auto& job) { job.ranks[3].version.clear(); }},
  };
}

}  // namespace ddp::tools::doctor::test
