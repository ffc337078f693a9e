// What the doctor reads of a machine, laid out as folders, how it travels, and probes on this host.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include <thread>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "doctor/collect.hpp"
#include "doctor/gather.hpp"
#include "doctor/nccl_interfaces.hpp"
#include "doctor/report.hpp"
#include "kvs/memory_store.hpp"
#include "unit/tools/doctor/healthy_job.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::tools::doctor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

TEST(DoctorCollect, ReadsAProcess) {
  const topology::FakeRoot root;
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max open files            1024                 524288               files     \n"
             "Max locked memory         65536                unlimited            bytes     ");
  root.write("proc/self/status", "Name:\tddp-info\nCpus_allowed_list:\t0-3,8");
  root.write("proc/self/cgroup", "0::/job/step");
  root.write("sys/fs/cgroup/job/cpu.max", "250000 100000");
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/job/step/pids.max", "99");
  root.write("sys/fs/cgroup/job/pids.max", "max");
  root.write("etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth7\nNCCL_ALGO=Tree");
  root.folder("proc/self/ns");
  std::filesystem::create_symlink("net:[7]", root.path() / "proc/self/ns/net");
  root.folder("dev/shm");
  const RankFacts rank = collect_rank(
      root.path(),
      with({{"NCCL_ALGO", "Ring"}, {"HF_TOKEN", "x"}, {"NCCL_PSK", "y"}, {"PATH", "/bin"}, {"PMIX_VERSION", "4.2.2"}}));
  EXPECT_EQ(rank.open_files, 1024);
  EXPECT_EQ(rank.memlock_bytes, 65536);
  EXPECT_EQ(rank.cpus, CpuSet::parse("0-3,8"));
  EXPECT_DOUBLE_EQ(rank.cpu_quota, 2.5);
  EXPECT_EQ(rank.pids_limit, 99);
  EXPECT_EQ(rank.namespaces, (Variables{{"net", "net:[7]"}}));
  EXPECT_NE(rank.shm_device, 0U);
  EXPECT_EQ(rank.pmix_version, "4.2.2");
  EXPECT_EQ(rank.environment, (Variables{{"NCCL_ALGO", "Ring"}, {"NCCL_SOCKET_IFNAME", "eth7"}}));

  // CAP_IPC_LOCK makes the limit void, but not that of a user namespace.
  for (const char* map : {"0 0 4294967295", "0 1000 1"}) {
    root.write("proc/self/status", "CapEff:\t0000000000004000");
    root.write("proc/self/uid_map", map);
    EXPECT_EQ(collect_rank(root.path(), with({})).memlock_bytes, map[4] == '4' ? -1 : 65536) << map;
  }

  const topology::FakeRoot empty;
  const RankFacts nothing = collect_rank(empty.path(), with({}));
  EXPECT_EQ(nothing.open_files, -1);
  EXPECT_EQ(nothing.pids_limit, -1);
  EXPECT_DOUBLE_EQ(nothing.cpu_quota, 0);
  EXPECT_TRUE(nothing.cpus.empty());
}

/// The configuration space of a port of the given type (4: root port, 6: of a switch), whose Access Control Services
/// are a second extended capability.
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

/// A GPU, and an adapter with two functions, behind two ports; @p type of these.
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

// What matters is between two devices: a switch's ports send their packets upwards, an IOMMU translates them.
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
    root.write("proc/sys/kernel/osrelease", "6.1.0");
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
    const NodeFacts node =
        collect_node(root.path(), {{.name = "eth0",
                                    .flags = 0x41,  // IFF_UP, IFF_RUNNING
                                    .addresses = {{.address = "10.1.0.1", .prefix_length = 24, .ipv6 = false},
                                                  {.address = "fe80::1", .prefix_length = 64, .ipv6 = true}}}});
    EXPECT_EQ(node.boot_id, "b-1");
    EXPECT_EQ(node.kernel, "6.1.0");
    EXPECT_EQ(node.port_low, 32768);
    EXPECT_EQ(node.port_high, 60999);
    EXPECT_GT(node.shm_bytes, 0);
    EXPECT_EQ(node.iommu, "DMA-FQ");
    EXPECT_TRUE(node.peer_memory);
    EXPECT_TRUE(node.dma_buf);
    EXPECT_EQ(node.nvidia_gpus, 1);
    ASSERT_EQ(node.interfaces.size(), 1U);
    EXPECT_EQ(node.interfaces[0].mtu, 9000);
    EXPECT_EQ(node.interfaces[0].arp_ignore, 1);
    EXPECT_EQ(node.interfaces[0].arp_announce, 2);
    EXPECT_EQ(node.interfaces[0].addresses.size(), 2U);
    EXPECT_EQ(node.interfaces[0].kind, InterfaceKind::hardware);
    ASSERT_EQ(node.rdma.size(), 1U);
    EXPECT_EQ(node.rdma[0].state, "ACTIVE");
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

TEST(DoctorFacts, TravelWhole) {
  JobFacts job = test::healthy_job();
  RankFacts facts = job.ranks[1];
  facts.environment = {{"NCCL_ALGO", "Ring"}};
  facts.gpus = {"GPU-1"};
  facts.cpu_quota = 2.5;
  facts.of_node = job.nodes[0].facts;
  facts.of_node->listeners = {{.interface = "eth0", .address = "10.1.0.1", .mtu = 1500, .tcp_port = 1, .udp_port = 2}};
  facts.of_node->token = Bytes(16, std::byte{7});
  facts.of_node->rdma = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE", .link_layer = "InfiniBand"}};
  Bytes bytes = encode(facts);
  EXPECT_EQ(decode_rank_facts(bytes), facts);
  EXPECT_EQ(decode_probe_report(encode(job.nodes[0].probes)), job.nodes[0].probes);
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_rank_facts(bytes), Error);
  for (std::size_t size = 0; size + 1 < bytes.size(); ++size) {
    EXPECT_THROW(decode_rank_facts(std::span{bytes}.first(size)), Error) << size;
  }
}

/// Two nodes of two ranks each, one thread a rank.
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
          store, map, own,
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

TEST(DoctorProbe, PacketsReachWhoAnswersAndNobodyElse) {
  const std::vector<InterfaceFacts> own{test::loopback()};
  const ProbeAnswers answers{{{.interface = "lo", .address = "127.0.0.1", .mtu = 9000, .tcp_port = 0, .udp_port = 0}}};
  ASSERT_EQ(answers.listeners().size(), 1U);
  const ProbeTarget target{.to_node = 3, .listener = answers.listeners()[0], .token = answers.token()};
  ProbeTarget stranger = target;
  stranger.token = Bytes(answers.token().size(), std::byte{0});
  ProbeTarget nobody = target;
  nobody.listener.tcp_port = 1;
  nobody.listener.udp_port = 1;
  const auto good = probe({target}, own, Deadline::after(std::chrono::seconds(60)));
  ASSERT_EQ(good.size(), 1U);
  EXPECT_EQ(good[0].to_node, 3);
  EXPECT_EQ(good[0].end, ProbeEnd::reached);
  EXPECT_EQ(good[0].packet, PacketEnd::passed);
  EXPECT_EQ(good[0].packet_bytes, 9000);  // the smaller of both MTUs
  const auto bad = probe({stranger, nobody}, own, Deadline::after(std::chrono::milliseconds(300)));
  ASSERT_EQ(bad.size(), 2U);
  EXPECT_EQ(bad[0].packet, PacketEnd::untested);
  EXPECT_EQ(bad[1].end, ProbeEnd::refused);
  EXPECT_THAT(probed_nodes(3, 4), ElementsAre(0, 1, 2));
  EXPECT_THAT(probed_nodes(0, 100), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(probed_nodes(0, 1), ElementsAre());
}

// Where the kernel or a router says that a packet is too large, senders learn it: only silence is a fault.
TEST(DoctorProbe, APacketThatIsRefusedAloudIsNotLost) {
  const pid_t child = ::fork();
  if (child == 0) {  // a network of its own, with a smaller MTU than both sides believe
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(77);
    const base::UniqueFd fd{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    ifreq request{};
    request.ifr_name[0] = 'l';
    request.ifr_name[1] = 'o';
    request.ifr_mtu = 1500;
    if (::ioctl(fd.get(), SIOCSIFMTU, &request) != 0) ::_exit(77);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) ::_exit(77);
    const ProbeAnswers answers{
        {{.interface = "lo", .address = "127.0.0.1", .mtu = 9000, .tcp_port = 0, .udp_port = 0}}};
    const ProbeTarget target{.to_node = 1, .listener = answers.listeners().at(0), .token = answers.token()};
    const auto found = probe({target}, {test::loopback()}, Deadline::after(std::chrono::seconds(3)));
    ::_exit(found.at(0).end == ProbeEnd::reached && found.at(0).packet == PacketEnd::untested ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs a network namespace";
  EXPECT_EQ(status, 0);
}

TEST(DoctorReport, SaysTheVerdictFirst) {
  JobFacts job = test::healthy_job();
  Examination done{.job = &job, .rules = 7, .findings = {}, .time = std::chrono::milliseconds(120)};
  EXPECT_EQ(format_text(done), "ok: 2 nodes, 4 ranks, 7 rules, 0.12 s\n");
  job.nodes[1].facts.shm_bytes = 64 << 20;
  job.ranks[1].memlock_bytes = 65536;
  done.findings = test::findings_of(job);
  EXPECT_THAT(format_text(done), testing::StartsWith("1 error, 1 warning: 2 nodes, 4 ranks, 7 rules, 0.12 s\n"
                                                     "error shm-size: /dev/shm is too small\n"
                                                     "  n1, ranks 2-3: /dev/shm has 64 MiB, where 128 MiB are needed\n"
                                                     "    fix: mount -o remount,size=50% /dev/shm"));
  EXPECT_THAT(format_json(done), testing::AllOf(HasSubstr("\"rule\": \"shm-size\""), HasSubstr("\"errors\": 1")));
}

}  // namespace
}  // namespace ddp::tools::doctor
