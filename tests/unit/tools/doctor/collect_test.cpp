// What the doctor reads from a machine, laid out as folders, and how the facts travel.
#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "doctor/examination.hpp"
#include "doctor/facts_fields.hpp"
#include "doctor/nccl_network.hpp"
#include "kvs/memory_store.hpp"
#include "support/message_check.hpp"
#include "support/topology_samples.hpp"
#include "unit/tools/doctor/healthy_job.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::tools::doctor {
namespace {

base::Environment with(std::map<std::string, std::string, std::less<>> variables) {
  return base::Environment{std::move(variables)};
}

std::string choices(const std::vector<InterfaceFacts>& interfaces, const Variables& variables) {
  std::string names;
  for (const SocketChoice& choice : predict_socket_interfaces(interfaces, variables)) {
    names += (names.empty() ? "" : " ") + choice.interface->name;
  }
  return names;
}

TEST(NcclInterfaces, AreChosenAsNcclDoes) {
  InterfaceFacts v6 = test::interface_of("eth6", "2001:db8::1");
  v6.addresses[0].ipv6 = true;
  InterfaceFacts down = test::interface_of("eth9", "10.9.0.1");
  down.running = false;
  const std::vector<InterfaceFacts> all{test::loopback(),
                                        test::interface_of("docker0", "172.17.0.1"),
                                        v6,
                                        down,
                                        test::interface_of("eth1", "10.1.0.1"),
                                        test::interface_of("eth10", "10.10.0.1")};
  EXPECT_EQ(choices(all, {}), "eth1 eth10 eth6");
  EXPECT_EQ(choices(all, {{"NCCL_SOCKET_IFNAME", "eth1"}}), "eth1 eth10");
  EXPECT_EQ(choices(all, {{"NCCL_SOCKET_IFNAME", "=eth1"}}), "eth1");
  EXPECT_EQ(choices(all, {{"NCCL_SOCKET_IFNAME", "^eth"}}), "lo docker0");
  EXPECT_EQ(choices(all, {{"NCCL_SOCKET_IFNAME", "eth9"}}), "");
  EXPECT_EQ(choices(all, {{"NCCL_SOCKET_FAMILY", "AF_INET6"}}), "eth6");
  auto with_ib = all;
  with_ib.push_back(test::interface_of("ib0", "10.20.0.1"));
  EXPECT_EQ(choices(with_ib, {}), "ib0");
  EXPECT_EQ(choices({all[0], all[1]}, {}), "docker0");
  EXPECT_EQ(choices({all[0]}, {}), "lo");
}

TEST(DoctorCollect, ReadsCgroupsOfVersionOne) {
  const topology::FakeRoot root;
  root.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n7:pids:/docker/x");
  root.write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "150000");
  root.write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000");
  root.write("sys/fs/cgroup/pids/docker/x/pids.max", "64");
  const RankFacts rank = collect_rank(root.path(), with({}), {});
  EXPECT_EQ(rank.cpu_quota, 1.5);
  EXPECT_EQ(rank.pids_limit, 64);
}

TEST(DoctorCollect, ReadsAProcess) {
  const topology::FakeRoot root;
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max stack size            unlimited            unlimited            bytes     \n"
             "Max open files            1024                 524288               files     \n"
             "Max locked memory         65536                unlimited            bytes     ");
  root.write("proc/self/status", "Name:\tddp-info\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0");
  root.write("proc/self/cgroup", "0::/job/step");
  root.write("sys/fs/cgroup/job/cpu.max", "250000 100000");
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/job/step/pids.max", "99");
  root.write("sys/fs/cgroup/job/pids.max", "max");
  root.folder("proc/self/ns");
  std::filesystem::create_symlink("net:[7]", root.path() / "proc/self/ns/net");
  root.folder("dev/shm");
  const RankFacts rank =
      collect_rank(root.path(),
                   with({{"NCCL_ALGO", "Ring"},
                         {"HF_TOKEN", "x"},
                         {"NCCL_PSK", "y"},
                         {"PATH", "/bin"},
                         {"PMIX_VERSION", "4.2.2"},
                         {"http_proxy", "http://me:hunter2@proxy"}}),
                   {{.path = "/etc/nccl.conf",
                     .digest = 0,
                     .settings = {{"NCCL_SOCKET_IFNAME", "eth7"}, {"NCCL_ALGO", "Tree"}, {"NCCL_PSK", "y"}}}});
  EXPECT_EQ(rank.open_files, 1024);
  EXPECT_EQ(rank.memlock_bytes, 65536);
  EXPECT_EQ(rank.cpus, CpuSet::parse("0-3,8"));
  EXPECT_EQ(rank.memory_nodes, CpuSet::parse("0"));
  EXPECT_TRUE(rank.stack_unlimited);
  EXPECT_DOUBLE_EQ(rank.cpu_quota, 2.5);
  EXPECT_EQ(rank.pids_limit, 99);
  EXPECT_EQ(rank.namespaces, (Variables{{"net", "net:[7]"}}));
  EXPECT_NE(rank.shm_device, 0U);
  EXPECT_EQ(rank.pmix_version, "4.2.2");
  EXPECT_EQ(
      rank.environment,
      (Variables{{"NCCL_ALGO", "Ring"}, {"NCCL_SOCKET_IFNAME", "eth7"}, {"http_proxy", "http://me:(hidden)@proxy"}}));

  // CAP_IPC_LOCK lifts the limit, but not the one of a user namespace.
  for (const char* map : {"0 0 4294967295", "0 1000 1"}) {
    root.write("proc/self/status", "CapEff:\t0000000000004000");
    root.write("proc/self/uid_map", map);
    EXPECT_EQ(collect_rank(root.path(), with({}), {}).memlock_bytes, map[4] == '4' ? -1 : 65536) << map;
  }

  const topology::FakeRoot empty;
  const RankFacts nothing = collect_rank(empty.path(), with({}), {});
  EXPECT_EQ(nothing.open_files, -1);
  EXPECT_FALSE(nothing.stack_unlimited);
  EXPECT_EQ(nothing.pids_limit, -1);
  EXPECT_DOUBLE_EQ(nothing.cpu_quota, 0);
  EXPECT_TRUE(nothing.cpus.empty());
}

/// The configuration space of a port of the given type (4: root port, 6: switch port), with Access Control Services as
/// its second extended capability.
std::string port_config(char type, char control) {
  std::string bytes(4096, '\0');
  bytes[0x34] = 0x40;
  bytes.replace(0x40, 2, std::string("\x01\x60", 2));  // power management, the next one at 0x60
  bytes.replace(0x60, 3, std::string({0x10, 0x00, static_cast<char>(type << 4)}));
  bytes.replace(0x100, 4, std::string("\x01\x00\x01\x15", 4));  // error reporting, the next one at 0x150
  bytes.replace(0x150, 4, std::string("\x0d\x00\x01\x00", 4));
  bytes[0x156] = control;
  return bytes;
}

/// A GPU and an adapter with two functions behind two ports of this @p type.
NodeFacts machine_with_ports(char type, char control, bool with_adapter) {
  const topology::FakeRoot root;
  const auto device = [&](const char* port, const char* address, const char* device_class, const char* driver) {
    const auto folder = std::filesystem::path("sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0") / port;
    root.write(folder / "config", port_config(type, control));
    root.write(folder / address / "class", device_class);
    root.write(folder / address / "iommu_group/type", "DMA-FQ");
    root.link(std::string("sys/bus/pci/devices/") + address, folder / address);
    root.folder(std::string("sys/bus/pci/drivers/") + driver);
    root.link(folder / address / "driver", std::string("sys/bus/pci/drivers/") + driver);
    return folder / address;
  };
  root.write("sys/devices/pci0000:00/0000:00:01.0/config", port_config(4, 0x0c));  // a root port, above all
  device("0000:02:00.0", "0000:03:00.0", "0x030200", "nvidia");
  for (const char* function : {"0000:04:00.0", "0000:04:00.1"}) {
    if (!with_adapter) break;
    const auto nic = device("0000:02:01.0", function, "0x020000", "mlx5_core");
    const std::string name = std::string("mlx5_") + function[11];
    root.write(nic / "infiniband" / name / "ports/1/state", "4: ACTIVE");
    root.link("sys/class/infiniband/" + name, nic / "infiniband" / name);
  }
  NodeFacts node;
  collect_pci(node, root.sys());
  return node;
}

// Only the path between two devices matters: a switch's ports redirect their packets upwards, an IOMMU translates them.
TEST(DoctorCollect, OnlyPeersMeetOnPcie) {
  constexpr char kRoot = 4;
  constexpr char kSwitch = 6;
  constexpr char kRedirects = 0x0c;
  constexpr char kElse = 0x01;
  const NodeFacts bad = machine_with_ports(kSwitch, kRedirects, true);
  EXPECT_THAT(bad.acs_ports, ElementsAre("0000:02:00.0", "0000:02:01.0"));
  EXPECT_EQ(bad.iommu, "DMA-FQ");
  EXPECT_EQ(bad.nvidia_gpus, 1);
  EXPECT_THAT(machine_with_ports(kSwitch, kElse, true).acs_ports, testing::IsEmpty());
  EXPECT_THAT(machine_with_ports(kRoot, kRedirects, true).acs_ports, testing::IsEmpty());
  const NodeFacts alone = machine_with_ports(kSwitch, kRedirects, false);
  EXPECT_THAT(alone.acs_ports, testing::IsEmpty());
  EXPECT_EQ(alone.iommu, "");
}

TEST(DoctorCollect, ReadsAMachine) {
  {
    const topology::FakeRoot root;
    root.write("proc/sys/kernel/random/boot_id", "b-1");
    root.write("proc/sys/kernel/osrelease", "5.12.0-1-amd64");
    root.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999");
    root.write("proc/sys/net/ipv4/conf/all/arp_ignore", "1");
    root.write("proc/sys/net/ipv4/conf/eth0/arp_announce", "2");
    root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54");
    root.folder("sys/module/nvidia_peermem");
    root.folder("dev/shm");
    const auto gpu = root.pci("0000:01:00.0", "0x030200", "0x10de", "nvidia");
    root.write(gpu / "iommu_group/type", "DMA-FQ");
    const auto nic = root.pci("0000:02:00.0", "0x020000", "0x15b3", "mlx5_core");
    root.write(root.interface("eth0", 2, 1, nic) / "mtu", "9000");
    root.write(nic / "infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    root.write(nic / "infiniband/mlx5_0/ports/1/link_layer", "Ethernet");
    root.link("sys/class/infiniband/mlx5_0", nic / "infiniband/mlx5_0");
    for (const auto& [row, gid] :
         std::map<std::string, std::string>{{"0", "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"},
                                            {"1", "0000:0000:0000:0000:0000:0000:0000:0000"},
                                            {"10", "0000:0000:0000:0000:0000:ffff:0a01:0002"}}) {
      root.write(nic / "infiniband/mlx5_0/ports/1/gids" / row, gid);
      if (row != "1") root.write(nic / "infiniband/mlx5_0/ports/1/gid_attrs/types" / row, "RoCE v2");
    }
    const NodeFacts node =
        collect_node(root.path(), {{.name = "eth0",
                                    .flags = 0x41,  // IFF_UP, IFF_RUNNING
                                    .addresses = {{.address = "10.1.0.1", .prefix_length = 24, .ipv6 = false},
                                                  {.address = "fe80::1", .prefix_length = 64, .ipv6 = true}}}});
    EXPECT_EQ(node.boot_id, "b-1");
    EXPECT_EQ(node.kernel, "5.12.0-1-amd64");
    EXPECT_EQ(node.port_low, 32768);
    EXPECT_EQ(node.port_high, 60999);
    EXPECT_GT(node.shm_bytes, 0);
    EXPECT_EQ(node.iommu, "DMA-FQ");
    EXPECT_TRUE(node.peer_memory);
    EXPECT_TRUE(node.dma_buf);
    for (const char* too_old : {"5.11.22", "4.18.0-553.el8"}) {
      root.write("proc/sys/kernel/osrelease", too_old);
      EXPECT_FALSE(collect_node(root.path(), {}).dma_buf) << too_old;
    }
    EXPECT_EQ(node.nvidia_gpus, 1);
    ASSERT_EQ(node.interfaces.size(), 1U);
    EXPECT_EQ(node.interfaces[0].mtu, 9000);
    EXPECT_EQ(node.interfaces[0].arp_ignore, 1);
    EXPECT_EQ(node.interfaces[0].arp_announce, 2);
    EXPECT_EQ(node.interfaces[0].addresses.size(), 2U);
    EXPECT_EQ(node.interfaces[0].kind, InterfaceKind::hardware);
    ASSERT_EQ(node.rdma.size(), 1U);
    EXPECT_EQ(node.rdma[0].state, "ACTIVE");
    EXPECT_TRUE(node.rdma[0].gids_known);
    ASSERT_EQ(node.rdma[0].gids.size(), 2U);
    EXPECT_EQ(node.rdma[0].gids[1].index, 10);
    EXPECT_EQ(node.rdma[0].gids[1].type, "RoCE v2");
  }
}

TEST(DoctorCollect, SaysWhereATableOfAddressesIsCut) {
  const topology::FakeRoot root;
  const auto port = root.pci("0000:02:00.0", "0x020000", "0x15b3", "mlx5_core") / "infiniband/mlx5_0/ports/1";
  root.write(port / "state", "4: ACTIVE");
  root.write(port / "link_layer", "Ethernet");
  root.link("sys/class/infiniband/mlx5_0", port.parent_path().parent_path());
  for (const int rows : {16, 17}) {
    for (int row = 0; row < rows; ++row) {
      root.write(port / "gids" / std::to_string(row), "0000:0000:0000:0000:0000:ffff:0a01:0002");
      root.write(port / "gid_attrs/types" / std::to_string(row), "RoCE v2");
    }
    const NodeFacts node = collect_node(root.path(), {});
    ASSERT_EQ(node.rdma.size(), 1U);
    EXPECT_EQ(node.rdma[0].gids.size(), 16U);
    EXPECT_EQ(node.rdma[0].gids_cut, rows > 16);
  }
}

TEST(DoctorCollect, SeesAPortThatIsTaken) {
  const auto taken = [](Variables variables) {
    NodeFacts node;
    node.interfaces = {test::loopback()};
    collect_names(node, "localhost", with(std::move(variables)), Deadline::after(std::chrono::seconds(60)));
    return node.master_port_taken;
  };
  std::string port;
  {
    const base::UniqueFd listening = base::listen_tcp("127.0.0.1");
    port = std::to_string(base::local_port(listening.get()));
    EXPECT_TRUE(taken({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
    EXPECT_FALSE(
        taken({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
    EXPECT_FALSE(taken({{"MASTER_ADDR", "192.0.2.1"}, {"MASTER_PORT", port}}));                       // of another node
    EXPECT_FALSE(taken({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "tcp://127.0.0.1:" + port}}));  // Kubernetes'
  }
  EXPECT_FALSE(taken({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}}));
}

TEST(DoctorCollect, AsksSrunForItsVersion) {
  const topology::FakeRoot root;
  const std::string path = ::getenv("PATH");
  const auto version = [&](const std::string& script, Variables variables) {
    root.write("srun", "#!/bin/sh\n" + script);
    std::filesystem::permissions(root.path() / "srun", std::filesystem::perms{0755});
    ::setenv("PATH", (root.path().string() + ":" + path).c_str(), 1);
    NodeFacts node;
    collect_slurm(node, with(std::move(variables)),
                  Deadline::after(std::chrono::seconds(script == "exec sleep 60" ? 1 : 60)));
    ::setenv("PATH", path.c_str(), 1);
    return node.slurm_version;
  };
  EXPECT_EQ(version("echo slurm-wlm 22.05.8", {{"SLURM_JOB_ID", "1"}}), "22.05.8");
  EXPECT_EQ(version("echo slurm 25.11.2-1; sleep 0", {{"SLURM_JOB_ID", "1"}}), "25.11.2");
  EXPECT_EQ(version("echo slurm-wlm 22.05.8", {}), "");
  EXPECT_EQ(version("exit 1", {{"SLURM_JOB_ID", "1"}}), "");
  EXPECT_EQ(version("exec sleep 60", {{"SLURM_JOB_ID", "1"}}), "");
}

TEST(DoctorFacts, TravelWhole) {
  JobFacts job = test::healthy_job();
  RankFacts facts = job.ranks[1];
  facts.environment = {{"NCCL_ALGO", "Ring"}};
  facts.gpus = {"GPU-1"};
  facts.cpu_quota = 2.5;
  facts.of_node = job.nodes[0].facts;
  facts.of_node->listeners = {{.interface = "eth0", .address = "10.1.0.1", .mtu = 1500, .tcp_port = 1, .udp_port = 2}};
  facts.of_node->token = Bytes(16, std::byte{7});
  facts.of_node->rdma = {{.device = "mlx5_0",
                          .port = 1,
                          .state = "ACTIVE",
                          .link_layer = "Ethernet",
                          .gids_known = true,
                          .gids = {{.index = 3, .type = "RoCE v2", .gid = "fe80::1"}}}};
  facts.of_node->slurm_version = "22.05.8";
  facts.of_node->rdma[0].pkeys = {0xffff};
  facts.of_node->gpus = {{.name = "GPU-1", .numa_node = 0, .cpus = CpuSet::parse("0-3"), .paths = {Path::unknown}}};
  facts.of_node->fabric_manager = FabricManager::absent;
  facts.plugins = {{.variable = "NCCL_NET_PLUGIN", .path = "/p", .digest = "1", .network = "", .by_default = true}};
  facts.missing_files = {{"NCCL_TOPO_FILE", "/x"}};
  facts.memory_nodes = CpuSet::parse("0-1");
  facts.gpu_health = {{.name = "GPU-1",
                       .uncorrected_errors = 2,
                       .slowed_by = 8,
                       .persistent = false,
                       .fabric = topology::FabricState::completed,
                       .cluster = "01",
                       .clique = 7}};
  tests::check_message<RankFacts>();
  tests::check_message<ProbeReport>();
  EXPECT_EQ(base::decode<RankFacts>(base::encode(facts)), facts);
  EXPECT_EQ(base::decode<ProbeReport>(base::encode(job.nodes[0].probes)), job.nodes[0].probes);
}

/// Two nodes of two ranks each, one thread per rank.
JobFacts gather_on_threads(const std::optional<world::NodeMap>& map, std::vector<std::vector<ProbeTarget>>& probed) {
  const JobFacts job = test::healthy_job();
  const auto hub = std::make_shared<kvs::MemoryHub>(4);
  std::optional<JobFacts> gathered;
  probed.resize(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      kvs::MemoryStore store{hub, rank};
      RankFacts own = job.ranks[static_cast<std::size_t>(rank)];
      own.node = -1;
      if (own.local_rank == 0) {
        own.of_node = job.nodes[static_cast<std::size_t>(rank / 2)].facts;
        own.of_node->listeners = {{.interface = "eth0",
                                   .address = "10.1.0." + std::to_string(rank / 2 + 1),
                                   .mtu = 0,
                                   .tcp_port = 9,
                                   .udp_port = 9}};
      }
      auto result = gather(
          store, map, own, {.rank = rank, .host = own.host},
          [&probed, rank](const std::vector<ProbeTarget>& targets) {
            probed[static_cast<std::size_t>(rank)] = targets;
            return std::vector<ProbeResult>{test::reached(1 - rank / 2, "eth0", targets.at(0).listener.address)};
          },
          Deadline::after(std::chrono::seconds(60)));
      EXPECT_EQ(result.has_value(), rank == 0);
      if (result) gathered = std::move(result);
    });
  }
  for (auto& thread : threads) thread.join();
  return gathered.value();
}

TEST(DoctorGather, BringsEveryNodeAndWhatItProbed) {
  for (const auto& map : {std::optional{world::NodeMap{{0, 0, 1, 1}}}, std::optional<world::NodeMap>{}}) {
    std::vector<std::vector<ProbeTarget>> probed;
    const JobFacts job = gather_on_threads(map, probed);
    ASSERT_EQ(job.nodes.size(), 2U);
    EXPECT_EQ(job.nodes[1].host, "n1");
    EXPECT_THAT(job.nodes[1].ranks, ElementsAre(2, 3));
    EXPECT_EQ(job.nodes[1].probes.results.at(0).address, "10.1.0.1");
    EXPECT_GT(job.nodes[1].probes.clock_ms, 0);
    EXPECT_EQ(job.ranks[3].node, 1);
    EXPECT_TRUE(probed[1].empty() && probed[3].empty());
    EXPECT_EQ(probed[0].at(0).listener.address, "10.1.0.2");
    EXPECT_THAT(test::rules_found(job), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace ddp::tools::doctor
