// What the doctor reads of a machine's services, libraries, GPUs' fabric and adapters, laid out as folders.
#include <ddp/topology.hpp>

#include "doctor/examination.hpp"
#include "support/checkout.hpp"
#include "unit/tools/doctor/healthy_job.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::tools::doctor {
namespace {

using topology::FakeRoot;

base::Environment given(std::map<std::string, std::string, std::less<>> variables) {
  return base::Environment{std::move(variables)};
}

NodeFacts services(const FakeRoot& root, Variables variables = {}, unsigned user = 1000) {
  NodeFacts node;
  collect_services(node, root.path(), given(std::move(variables)), user);
  return node;
}

TEST(DoctorServices, RemoveIpcCountsForUsersWithASession) {
  const FakeRoot root;
  EXPECT_FALSE(services(root).removes_ipc);
  root.write("run/systemd/users/1000", "NAME=u");
  EXPECT_TRUE(services(root).removes_ipc);  // logind's default
  EXPECT_FALSE(services(root, {}, 1001).removes_ipc);
  root.write("run/systemd/users/999", "NAME=slurm");
  EXPECT_FALSE(services(root, {}, 999).removes_ipc);
  root.write("etc/systemd/logind.conf", "[Login]\nRemoveIPC=no");
  EXPECT_FALSE(services(root).removes_ipc);
  root.write("usr/lib/systemd/logind.conf.d/20-site.conf", "[Login]\nRemoveIPC=yes");
  EXPECT_TRUE(services(root).removes_ipc);
  root.write("etc/systemd/logind.conf.d/20-site.conf", "[Login]\nRemoveIPC=off");
  EXPECT_FALSE(services(root).removes_ipc);
}

TEST(DoctorServices, AnotherUsersRasIsFound) {
  const FakeRoot root;
  const std::string head =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
  const auto line = [](const char* local, const char* state, const char* user) {
    return std::string("   0: ") + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000  " +
           user + "        0 12 1 0";
  };
  root.write("proc/net/tcp", head + line("0100007F:6D7C", "0A", "1001"));
  EXPECT_EQ(services(root).foreign_ras_port, 28028);
  EXPECT_EQ(services(root, {}, 1001).foreign_ras_port, 0);
  EXPECT_EQ(services(root, {{"NCCL_RAS_ADDR", "localhost:7000"}}).foreign_ras_port, 0);
  root.write("proc/net/tcp", head + line("0100007F:6D7C", "01", "1001"));  // established
  EXPECT_EQ(services(root).foreign_ras_port, 0);
  root.write("proc/net/tcp6", head + line("00000000000000000000000001000000:1B58", "0A", "0"));
  EXPECT_EQ(services(root, {{"NCCL_RAS_ADDR", "localhost:7000"}}).foreign_ras_port, 7000);
}

TEST(DoctorServices, GatewaysAndNumaNodes) {
  const FakeRoot root;
  root.write("proc/net/route",
             "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0100000A\t0003\neth1\t0002000A\t00000000\t0001");
  EXPECT_THAT(services(root).gateways, ElementsAre("eth0"));
  EXPECT_FALSE(services(root).numa);
  root.folder("sys/devices/system/node/node0");
  EXPECT_TRUE(services(root).numa);
}

TEST(DoctorFabric, ReadsDriverSwitchesAndImex) {
  const FakeRoot root;
  const auto fabric = [&] {
    NodeFacts node;
    collect_fabric(node, root.path());
    return node;
  };
  root.write("proc/1/comm", "systemd");
  root.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5");
  EXPECT_EQ(fabric().nvidia_driver, "550.54.15");
  EXPECT_EQ(fabric().fabric_manager, FabricManager::unknown);  // it is not needed
  EXPECT_EQ(fabric().imex_nodes, "");
  root.folder("proc/driver/nvidia-nvswitch/devices/0000:c4:00.0");
  EXPECT_EQ(fabric().nvswitches, 1);
  EXPECT_EQ(fabric().fabric_manager, FabricManager::absent);
  root.write("proc/1/comm", "bash");  // a container
  EXPECT_EQ(fabric().fabric_manager, FabricManager::unknown);
  root.write("proc/77/comm", "nv-fabricmanage");
  EXPECT_EQ(fabric().fabric_manager, FabricManager::running);
  root.write("etc/nvidia-imex/nodes_config.cfg", "# nodes\n10.0.0.1\n10.0.0.2");
  const std::string digest = fabric().imex_nodes;
  root.write("etc/nvidia-imex/nodes_config.cfg", "10.0.0.1 \n\n10.0.0.2");
  EXPECT_EQ(fabric().imex_nodes, digest);
  root.write("etc/nvidia-imex/nodes_config.cfg", "10.0.0.1");
  EXPECT_NE(fabric().imex_nodes, digest);
}

TEST(DoctorXids, FailuresOfGpusAreReadFromTheKernelsLog) {
  const FakeRoot root;
  NodeFacts node;
  collect_xids(node, root.path());
  EXPECT_TRUE(node.xids.empty());  // nobody may read it
  root.write("proc/uptime", "100000.50 7.0\n");
  root.write("dev/kmsg",
             "6,1,100,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
             "4,2,6400000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"
             " SUBSYSTEM=pci\n"
             "4,3,10000000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python, MMU Fault\n"  // a program's own
             "4,4,99000000000,-;NVRM: Xid (PCI:0000:5e:00): 94, Contained\n"
             "4,5,99900000000,-;NVRM: Xid (PCI:0000:5e:00): 94, Contained\n"
             "4,6,1,-;NVRM: Xid (PCI:): , \n4,7;NVRM: Xid (PCI:0000:5e:00): 79\n;\n,,,;\n");
  collect_xids(node, root.path());
  EXPECT_THAT(node.xids, ElementsAre(XidFacts{.gpu = "0000:3b:00", .number = 79, .times = 1, .age_s = 93600},
                                     XidFacts{.gpu = "0000:5e:00", .number = 94, .times = 2, .age_s = 100}));
}

TEST(DoctorFabric, AsksFabricManagerForItsVersion) {
  const FakeRoot root;
  root.write("nv-fabricmanager", "#!/bin/sh\necho 'Fabric Manager version is : 550.54.14'");
  std::filesystem::permissions(root.path() / "nv-fabricmanager", std::filesystem::perms{0755});
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (root.path().string() + ":" + path).c_str(), 1);
  NodeFacts without;
  NodeFacts with;
  with.nvswitches = 4;
  for (NodeFacts* node : {&without, &with}) collect_fabric_manager(*node, Deadline::after(std::chrono::seconds(60)));
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(without.fabric_manager_version, "");
  EXPECT_EQ(with.fabric_manager_version, "550.54.14");
}

TEST(DoctorRdma, ReadsPartitionsFirmwareAndSubnet) {
  const FakeRoot root;
  const auto device = root.pci("0000:02:00.0", "0x020700", "0x15b3", "mlx5_core") / "infiniband/mlx5_0";
  root.write(device / "ports/1/state", "4: ACTIVE");
  root.write(device / "ports/1/link_layer", "InfiniBand");
  root.write(device / "ports/1/rate", "400 Gb/sec (4X NDR)");
  root.write(device / "ports/1/gids/0", "fec0:0000:0000:0007:506b:4b03:00f3:8a5b");
  root.write(device / "ports/1/pkeys/0", "0xffff");
  root.write(device / "ports/1/pkeys/1", "0x7001");
  root.write(device / "ports/1/pkeys/2", "0x0000");
  root.write(device / "board_id", "MT_0000000838");
  root.write(device / "fw_ver", "28.39.1002");
  root.link("sys/class/infiniband/mlx5_0", device);
  NodeFacts node;
  collect_rdma(node, root.sys());
  ASSERT_EQ(node.rdma.size(), 1U);
  const RdmaPortFacts& port = node.rdma[0];
  EXPECT_EQ(port.subnet, "fec0:0000:0000:0007");
  EXPECT_THAT(port.pkeys, ElementsAre(0xffff, 0x7001));
  EXPECT_EQ(port.board + " " + port.firmware, "MT_0000000838 28.39.1002");
  EXPECT_EQ(port.rate_mbps, 400'000);
  EXPECT_EQ(port.pci, "0000:02:00.0");
  EXPECT_EQ(node.libfabric_device, "");

  const auto efa = root.pci("0000:03:00.0", "0x020000", "0x1d0f", "efa");
  root.write(efa / "infiniband/efa_0/ports/1/state", "4: ACTIVE");
  root.link(efa / "infiniband/efa_0/device", efa);
  root.link("sys/class/infiniband/efa_0", efa / "infiniband/efa_0");
  NodeFacts cloud;
  collect_rdma(cloud, root.sys());
  EXPECT_EQ(cloud.libfabric_device, "efa_0 (EFA)");
}

struct DoctorLibraries : testing::Test {
  RankFacts libraries(Variables variables) {
    RankFacts rank;
    rank.environment = variables;
    collect_libraries(rank, root_.path(),
                      {.program = "", .environment = given(variables), .root = root_.path().string()});
    return rank;
  }
  FakeRoot root_;
};

TEST_F(DoctorLibraries, PluginsAreThoseThatNcclOpens) {
  EXPECT_TRUE(libraries({}).plugins.empty());
  root_.write("opt/lib/libnccl-net.so", "ELF libfabric.so.1");
  root_.write("opt/lib/libnccl-net-ib.so", "ELF libsharp_coll.so.5");
  const auto by_default = libraries({{"LD_LIBRARY_PATH", "/opt/lib"}}).plugins;
  ASSERT_EQ(by_default.size(), 1U);
  EXPECT_EQ(by_default[0].path, "/opt/lib/libnccl-net.so");
  EXPECT_EQ(by_default[0].network, "libfabric");
  EXPECT_TRUE(by_default[0].by_default);
  const auto named = libraries({{"LD_LIBRARY_PATH", "/opt/lib"}, {"NCCL_NET_PLUGIN", "ib"}}).plugins;
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(named[0].network, "InfiniBand");
  EXPECT_FALSE(named[0].by_default);
  EXPECT_NE(named[0].digest, by_default[0].digest);
  EXPECT_TRUE(libraries({{"LD_LIBRARY_PATH", "/opt/lib"}, {"NCCL_NET_PLUGIN", "none"}}).plugins.empty());
}

TEST_F(DoctorLibraries, VerbsNeedDeviceFilesAndALibrary) {
  EXPECT_EQ(libraries({}).verbs_problem, "");  // no RDMA here
  root_.folder("sys/class/infiniband/mlx5_0");
  EXPECT_THAT(libraries({}).verbs_problem, HasSubstr("no /dev/infiniband/uverbs"));
  root_.write("dev/infiniband/uverbs0", "");
  EXPECT_THAT(libraries({}).verbs_problem, HasSubstr("libibverbs"));
  root_.write("usr/lib/libibverbs.so.1", "");
  EXPECT_EQ(libraries({}).verbs_problem, "");
  std::filesystem::remove(root_.path() / "dev/infiniband/uverbs0");
  root_.folder("dev/infiniband/uverbs0");  // cannot be opened for writing, also by root
  EXPECT_THAT(libraries({}).verbs_problem, HasSubstr("may not be opened: EISDIR"));
  EXPECT_FALSE(libraries({}).libfabric);
  root_.write("usr/lib64/libfabric.so.1", "");
  EXPECT_TRUE(libraries({}).libfabric);
}

TEST_F(DoctorLibraries, FilesThatVariablesNameMustBeThere) {
  root_.write("etc/topo.xml", "<system/>");
  root_.folder("var/log/job");
  const auto missing = libraries({{"NCCL_TOPO_FILE", "/etc/topo.xml"},
                                  {"NCCL_GRAPH_FILE", "/etc/graph.xml"},
                                  {"NCCL_DEBUG_FILE", "/var/log/job/nccl.%h.%p"},
                                  {"NCCL_TOPO_DUMP_FILE", "/var/log/none/topo.xml"},
                                  {"TORCH_FR_DUMP_TEMP_FILE", "relative/dump"},
                                  {"NCCL_CONF_FILE", "~/nccl.conf"}})
                           .missing_files;
  EXPECT_EQ(missing, (Variables{{"NCCL_GRAPH_FILE", "/etc/graph.xml"},
                                {"NCCL_TOPO_DUMP_FILE", "/var/log/none"},
                                {"NCCL_CONF_FILE", "~/nccl.conf"}}));
}

TEST_F(DoctorLibraries, OtherVersionsOfNcclOnTheSearchPathAreFound) {
  // The smallest ELF file with a section .rodata.
  const auto write = [&](const std::string& folder, const std::string& version) {
    const std::string source = root_.path().string() + "/" + folder + ".c";
    std::ofstream(source) << "const char text[] = \"NCCL version " << version << "+cuda13.0\\0NCCL_DEBUG\";\n";
    root_.folder(folder);
    const std::string command =
        "gcc -shared -nostdlib -o " + root_.path().string() + "/" + folder + "/libnccl.so.2 " + source;
    ASSERT_EQ(std::system(command.c_str()), 0);
  };
  write("a", "2.30.7");
  write("b", "2.27.5");
  EXPECT_THAT(libraries({{"LD_LIBRARY_PATH", "/a:/b:/none"}}).nccl_copies,
              ElementsAre("2.27.5+cuda13.0 (/b/libnccl.so.2)"));
  EXPECT_TRUE(libraries({{"LD_LIBRARY_PATH", "/a:/a"}}).nccl_copies.empty());
}

TEST(DoctorGpus, KnowsHowFarAdaptersAre) {
  const Topology machine =
      Topology::from_xml_file((ddp::test::source_root() / "tests/topologies/eight-gpus-four-switches.xml").string());
  NodeFacts node;
  for (const Nic& nic : machine.nics()) {
    if (nic.rdma_device.empty()) continue;
    node.rdma.push_back({.device = nic.rdma_device, .port = 1, .state = "ACTIVE", .link_layer = "InfiniBand"});
  }
  node.rdma.push_back({.device = "other", .port = 1, .state = "ACTIVE", .link_layer = "InfiniBand"});
  collect_gpus(node, machine);
  ASSERT_EQ(node.gpus.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    const GpuFacts& gpu = node.gpus[i];
    ASSERT_EQ(gpu.paths.size(), node.rdma.size());
    EXPECT_EQ(gpu.paths.back(), Path::unknown);
    EXPECT_GE(gpu.numa_node, 0);
    EXPECT_FALSE(gpu.cpus.empty());
    EXPECT_GE(std::count(gpu.paths.begin(), gpu.paths.end(), Path::pix), 1);
  }
}

}  // namespace
}  // namespace ddp::tools::doctor
