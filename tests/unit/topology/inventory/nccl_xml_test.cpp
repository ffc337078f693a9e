#include "topology/inventory/nccl_xml.hpp"
#include "support/error_of.hpp"

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

namespace ddp::topology {
namespace {

// Two CPUs; on the first a switch with two GPUs and a NIC, and a switch below that switch with a third GPU; on the
// second a GPU without any switch.
constexpr const char* kMachine = R"(<?xml version="1.0"?>
<!-- a comment with <system> in it -->
<system version="1">
  <cpu numaid="0" affinity="00000001,0000000f" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x20b0" link_width="16"/>
      <pci busid="0000:10:00.0" class="0x030200" vendor="0x10de" device="0x20b0"/>
      <pci busid="0000:12:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"/>
      <pci busid="ffff:ff:02.0" class="0x060400">
        <pci busid="0000:13:00.0" class="0x030200"/>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="f0">
    <pci busid="0000:81:00.0" class="0x030200"/>
  </cpu>
</system>
)";

Topology read(const std::string& xml) { return Topology::from_parts(parts_from_nccl_xml(xml, "the text")); }

/// A machine of one CPU with @p inside.
std::string one_cpu(const std::string& inside) {
  return "<system version=\"1\">\n<cpu numaid=\"0\" affinity=\"ff\">\n" + inside + "\n</cpu>\n</system>";
}

std::string gpu(const std::string& bus, const std::string& inside, const std::string& sm = "80") {
  return "<pci busid=\"0000:" + bus + ":00.0\" class=\"0x030200\"><gpu dev=\"0\" sm=\"" + sm +
         "\" rank=\"0\" gdr=\"1\">" + inside + "</gpu></pci>";
}

TEST(NcclXml, IsRecognisedByItsRootElement) {
  EXPECT_TRUE(looks_like_nccl_xml(kMachine));
  EXPECT_TRUE(looks_like_nccl_xml("<system version=\"1\">"));
  EXPECT_TRUE(looks_like_nccl_xml(" \n<!-- <topology> --><?xml version=\"1.0\"?><system>"));
  EXPECT_TRUE(looks_like_nccl_xml("\xEF\xBB\xBF<system/>"));
  EXPECT_FALSE(looks_like_nccl_xml("<topology version=\"2.0\"><system/></topology>"));
  EXPECT_FALSE(looks_like_nccl_xml("<!-- <system> "));
  EXPECT_FALSE(looks_like_nccl_xml("<systematic/>"));
  EXPECT_FALSE(looks_like_nccl_xml("text <system>"));
  EXPECT_FALSE(looks_like_nccl_xml(""));
}

/// Vendors of the GPUs of a file of version @p version.
std::vector<Vendor> vendors(const std::string& inside, const std::string& version = "1") {
  std::vector<Vendor> found;
  const Topology machine =
      read("<system version=\"" + version + "\"><cpu numaid=\"0\" affinity=\"ff\">" + inside + "</cpu></system>");
  for (const Gpu& each : machine.gpus()) found.push_back(each.vendor);
  return found;
}

TEST(NcclXml, GpusWithoutAVendorAreKnownByTheirOtherAttributes) {
  const auto pci = [](const std::string& bus, const std::string& attributes, const std::string& inside) {
    return "<pci busid=\"0000:" + bus + ":00.0\" class=\"0x038000\"" + attributes + ">" + inside + "</pci>";
  };
  const std::string plain = "<gpu dev=\"0\" rank=\"0\" gdr=\"1\"/>";
  const std::string gcn = "<gpu dev=\"0\" sm=\"91\" gcn=\"908\"/>";
  const std::string xgmi = "<gpu dev=\"0\"><xgmi target=\"0000:02:00.0\" count=\"1\"/></gpu>";
  const std::string nvlink = "<gpu dev=\"0\"><nvlink target=\"0000:02:00.0\" count=\"1\"/></gpu>";
  EXPECT_THAT(vendors(pci("01", "", plain)), ElementsAre(Vendor::nvidia));
  EXPECT_THAT(vendors(pci("01", "", plain), "2"), ElementsAre(Vendor::amd)) << "RCCL's format";
  EXPECT_THAT(vendors(pci("01", "", gcn)), ElementsAre(Vendor::amd));
  EXPECT_THAT(vendors(pci("01", "", xgmi)), ElementsAre(Vendor::amd));
  EXPECT_THAT(vendors(pci("01", "", nvlink), "2"), ElementsAre(Vendor::nvidia));
  EXPECT_THAT(vendors(pci("01", "", plain) + pci("02", "", gcn)), ElementsAre(Vendor::amd, Vendor::amd));
  EXPECT_THAT(vendors(pci("01", "", plain) + pci("02", " vendor=\"0x1002\"", plain)),
              ElementsAre(Vendor::amd, Vendor::amd));
  EXPECT_THAT(vendors(pci("01", " vendor=\"0x10de\"", plain) + pci("02", "", gcn), "2"),
              ElementsAre(Vendor::nvidia, Vendor::amd));
  const Topology machine = read(one_cpu(pci("01", "", xgmi) + pci("02", "", gcn)));
  EXPECT_EQ(machine.gpus()[1].model, "AMD GPU");
}

TEST(NcclXml, ReadsProcessorsWithTheHighestWordFirst) {
  const Topology machine = read(kMachine);
  ASSERT_EQ(machine.numa_nodes().size(), 2U);
  EXPECT_EQ(machine.numa_nodes()[0].cpus.to_string(), "0-3,32");
  EXPECT_EQ(machine.numa_nodes()[1].cpus.to_string(), "4-7");
  EXPECT_EQ(machine.numa_nodes()[1].os_index, 1);
  EXPECT_THAT(machine.packages(), IsEmpty());
  ASSERT_EQ(machine.cores().size(), 9U) << "one core for each processor";
  EXPECT_EQ(machine.cores()[4].cpus.to_string(), "32");
  EXPECT_EQ(machine.cores()[4].numa_node, 0);
  EXPECT_EQ(machine.cores()[8].numa_node, 1);
  EXPECT_EQ(machine.source(), "the text");
}

TEST(NcclXml, ReadsDevicesByPciAddress) {
  const Topology machine = read(kMachine);
  std::vector<std::string> gpus;
  for (const Gpu& found : machine.gpus()) gpus.push_back(found.pci.to_string() + " " + found.model);
  EXPECT_THAT(gpus, ElementsAre("0000:10:00.0 10de:20b0", "0000:11:00.0 10de:20b0", "0000:13:00.0 NVIDIA GPU",
                                "0000:81:00.0 NVIDIA GPU"));
  for (const Gpu& found : machine.gpus()) EXPECT_EQ(found.vendor, Vendor::nvidia);
  ASSERT_EQ(machine.nics().size(), 1U);
  const Nic& nic = machine.nics()[0];
  EXPECT_EQ(nic.name(), "nic0");
  EXPECT_EQ(nic.model, "network adapter");
  EXPECT_TRUE(nic.fabric);
  EXPECT_TRUE(nic.usable);
  EXPECT_NEAR(nic.rate_gbps, 16 * 16 * 128.0 / 130.0, 1e-9);
  EXPECT_THAT(machine.interfaces(), IsEmpty()) << "nic0 is no name that the kernel knows";
}

TEST(NcclXml, OneElementStandsForAWholeSwitch) {
  const Topology machine = read(kMachine);
  const auto& gpus = machine.gpus();
  const Nic& nic = machine.nics()[0];
  EXPECT_EQ(machine.distance(gpus[0], gpus[1]).path, Path::pix);
  EXPECT_EQ(machine.distance(gpus[0], nic).path, Path::pix);
  EXPECT_EQ(machine.distance(gpus[0], nic).bridges, 2) << "each has a port of its own, as in hwloc's trees";
  EXPECT_EQ(machine.distance(gpus[2], nic).path, Path::pxb) << "two switches lie between";
  EXPECT_EQ(machine.distance(gpus[3], nic).path, Path::sys);
  EXPECT_EQ(gpus[3].locality.cpus.to_string(), "4-7");
}

TEST(NcclXml, DevicesOfOneCpuWithoutASwitchMeetAtItsHostBridge) {
  const Topology machine = read(one_cpu(gpu("01", "") + gpu("02", "")));
  EXPECT_EQ(machine.distance(machine.gpus()[0], machine.gpus()[1]).path, Path::phb);
}

TEST(NcclXml, AProcessorOfTwoNodesBelongsToTheFirst) {
  const Topology machine =
      read("<system><cpu numaid=\"3\" affinity=\"0f\"/><cpu numaid=\"1\" affinity=\"3c\"/></system>");
  EXPECT_EQ(machine.numa_nodes()[0].cpus.to_string(), "0-3");
  EXPECT_EQ(machine.numa_nodes()[1].cpus.to_string(), "4-5");
  EXPECT_EQ(machine.cores().size(), 6U);
}

TEST(NcclXml, ANodeWithoutProcessorsPutsItsDevicesNearToAll) {
  const Topology machine = read("<system><cpu numaid=\"0\" affinity=\"03\"/><cpu numaid=\"1\" affinity=\"00000000\">" +
                                gpu("01", "") + "</cpu></system>");
  EXPECT_EQ(machine.gpus()[0].locality.cpus.to_string(), "0-1");
  EXPECT_TRUE(machine.numa_nodes()[1].cpus.empty());
}

TEST(NcclXml, CountsDirectLinks) {
  const Topology machine =
      read(one_cpu(gpu("01", R"(<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>)") +
                   gpu("02", R"(<nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>)") + gpu("03", "")));
  const auto& gpus = machine.gpus();
  EXPECT_EQ(machine.link_bandwidth(gpus[0], gpus[1]), 100000);
  EXPECT_EQ(machine.link_bandwidth(gpus[1], gpus[0]), 100000);
  EXPECT_EQ(machine.distance(gpus[0], gpus[1]).path, Path::nvlink);
  EXPECT_EQ(machine.distance(gpus[0], gpus[2]).path, Path::phb);
}

TEST(NcclXml, LinksThatOnlyOneSideNamesCountForBoth) {
  const Topology machine = read(
      one_cpu(gpu("01", R"(<nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>)", "60") + gpu("02", "", "60")));
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[1]), 40000);
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[1], machine.gpus()[0]), 40000);
}

TEST(NcclXml, SwitchesConnectAllGpusThatHaveLinksToThem) {
  const std::string half = R"(<nvlink target="0000:c1:00.0" count="3" tclass="0x068000"/>)";
  const std::string other = R"(<nvlink target="0000:c2:00.0" count="3" tclass="0x068000"/>)";
  const Topology machine = read(
      one_cpu(gpu("01", half + other, "90") + gpu("02", half + other, "90") + gpu("03", half, "90") + gpu("04", "")));
  const auto& gpus = machine.gpus();
  EXPECT_EQ(machine.link_bandwidth(gpus[0], gpus[1]), 150000);
  EXPECT_EQ(machine.link_bandwidth(gpus[0], gpus[2]), 75000) << "no more than the weaker end";
  EXPECT_EQ(machine.link_bandwidth(gpus[0], gpus[3]), 0);
}

TEST(NcclXml, LinksToCpusAndHiddenDevicesConnectNoGpus) {
  const Topology machine = read(one_cpu(gpu("01", R"(<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>
       <nvlink target="fffffff:ffff:ff" count="12" tclass="0x068001"/>
       <nvlink target="0000:01:00.0" count="1" tclass="0x030200"/>)") +
                                        gpu("02", "")));
  EXPECT_EQ(machine.link_bandwidth(machine.gpus()[0], machine.gpus()[1]), 0);
}

TEST(NcclXml, ReadsLinksBetweenAmdGpus) {
  const std::string link = R"(<xgmi target="0000:02:00.0" count="1" tclass="0x038000"/>)";
  const Topology machine =
      read(one_cpu("<pci busid=\"0000:01:00.0\" class=\"0x038000\" vendor=\"0x1002\"><gpu dev=\"0\">" + link +
                   "</gpu></pci>\n" + gpu("02", "")));
  EXPECT_EQ(machine.gpus()[0].vendor, Vendor::amd);
  EXPECT_EQ(machine.distance(machine.gpus()[0], machine.gpus()[1]).path, Path::nvlink);
}

TEST(NcclXml, ReadsNamesPortsAndSpeedsOfNics) {
  const Topology machine = read(one_cpu(R"(
    <pci busid="0000:a0:00.0" class="0x020700"><nic>
      <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/>
      <net name="mlx5_0" dev="1" speed="200000" port="2" guid="0x2" maxconn="131072" gdr="1"/>
    </nic></pci>
    <pci busid="0000:b0:00.0" class="0x020000"><nic><net name="eth0" dev="2" speed="25000" port="0"/></nic></pci>)"));
  ASSERT_EQ(machine.nics().size(), 2U);
  const Nic& rdma = machine.nics()[0];
  EXPECT_EQ(rdma.rdma_device, "mlx5_0");
  ASSERT_EQ(rdma.ports.size(), 2U);
  EXPECT_EQ(rdma.ports[1].number, 2);
  EXPECT_EQ(rdma.ports[1].state, "ACTIVE");
  EXPECT_EQ(rdma.ports[1].rate_gbps, 200);
  EXPECT_EQ(rdma.rate_gbps, 400);
  EXPECT_TRUE(rdma.fabric);
  const Nic& ethernet = machine.nics()[1];
  EXPECT_EQ(ethernet.interface, "eth0");
  EXPECT_EQ(ethernet.rate_gbps, 25);
  EXPECT_FALSE(ethernet.fabric);
  EXPECT_THAT(ethernet.ports, IsEmpty());
  ASSERT_EQ(machine.interfaces().size(), 1U);
  EXPECT_EQ(machine.interfaces()[0].name, "eth0");
}

TEST(NcclXml, TakesJoinedDevicesApart) {
  const Topology machine = read(one_cpu(
      R"(<pci busid="0000:a0:00.0" class="0x020700"><nic>
           <net name="mlx5_0+mlx5_1" speed="400000" port="1"/></nic></pci>)"));
  ASSERT_EQ(machine.nics().size(), 2U);
  EXPECT_EQ(machine.nics()[0].rdma_device, "mlx5_0");
  EXPECT_EQ(machine.nics()[1].rdma_device, "mlx5_1");
  EXPECT_EQ(machine.nics()[1].index, 1);
}

TEST(NcclXml, ANicThatIsOnNoBusIsNowhereInParticular) {
  const Topology machine = read(
      "<system><cpu numaid=\"0\" affinity=\"03\"><nic><net name=\"eth0\" port=\"0\" speed=\"10000\"/>"
      "</nic></cpu><cpu numaid=\"1\" affinity=\"0c\"/></system>");
  ASSERT_EQ(machine.nics().size(), 1U);
  EXPECT_FALSE(machine.nics()[0].pci.has_value());
  EXPECT_EQ(machine.nics()[0].locality.numa_node, -1);
  EXPECT_EQ(machine.nics()[0].locality.cpus.to_string(), "0-3");
}

TEST(NcclXml, SkipsWhatItDoesNotKnow) {
  const Topology machine = read(one_cpu(R"(<pci busid="0000:01:00.0" class="0x030200" new="x"><gpu dev="2" sm="100">
      <c2c bw="360000" count="1"/><new/></gpu><new><pci busid="bad"/></new></pci><new/>)"));
  ASSERT_EQ(machine.gpus().size(), 1U);
  EXPECT_EQ(machine.gpus()[0].vendor_index, 2);
}

struct Mistake {
  const char* what;
  std::string xml;
  const char* expected;
};

TEST(NcclXml, NamesTheLineOfAMistake) {
  const std::vector<Mistake> mistakes = {
      {"an unclosed element", "<system>\n<cpu numaid=\"0\" affinity=\"1\">\n</system>", "line 3"},
      {"another root element", "<other/>", "the root element is <other>"},
      {"no cpu", "<system/>", "no <cpu> has a processor"},
      {"no processor", "<system><cpu numaid=\"0\" affinity=\"0\"/></system>", "no <cpu> has a processor"},
      {"no affinity", "<system><cpu numaid=\"0\"/></system>", "no <cpu> has a processor"},
      {"letters", "<system>\n\n<cpu numaid=\"0\" affinity=\"00xy\"/></system>", "line 3: '00xy'"},
      {"a word too long",
       "<system><cpu numaid=\"0\" affinity=\"000000001\"/><cpu numaid=\"1\" affinity=\"1ffffffff\"/></system>",
       "'1ffffffff'"},
      {"an empty word", "<system><cpu numaid=\"0\" affinity=\"1,,1\"/></system>", "'' in affinity"},
      {"a comma at the end", "<system><cpu numaid=\"0\" affinity=\"1,\"/></system>", "ends with a comma"},
      {"no node number", "<system><cpu affinity=\"1\"/></system>", "numaid=\"\""},
      {"a huge node number", "<system><cpu numaid=\"99999999999\" affinity=\"1\"/></system>", "numaid="},
      {"the same node twice", "<system><cpu numaid=\"0\" affinity=\"1\"/>\n<cpu numaid=\"0\" affinity=\"2\"/></system>",
       "line 2: NUMA node 0"},
      {"two hosts",
       "<system><cpu host_hash=\"0x1\" numaid=\"0\" affinity=\"1\"/><cpu host_hash=\"0x2\" numaid=\"1\" "
       "affinity=\"2\"/></system>",
       "several hosts"},
      {"a bad address", one_cpu("<pci busid=\"zz:00.0\" class=\"0x030200\"/>"), "line 3: busid=\"zz:00.0\""},
      {"no address", one_cpu("<pci class=\"0x060400\"/>"), "busid=\"\""},
      {"one address twice", one_cpu(gpu("01", "") + "\n" + gpu("01", "")), "line 4: two devices"},
      {"a bad count", one_cpu(gpu("01", "<nvlink target=\"0000:02:00.0\" count=\"many\" tclass=\"0x030200\"/>")),
       "count=\"many\""},
      {"an absurd count", one_cpu(gpu("01", "<nvlink target=\"0000:02:00.0\" count=\"100000\" tclass=\"0x030200\"/>")),
       "count=\"100000\""},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.what);
    const Error error = ddp::test::thrown_by([&] { parts_from_nccl_xml(mistake.xml, "file 'x.xml'"); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr(mistake.expected));
    EXPECT_THAT(error.attempted(), HasSubstr("file 'x.xml'"));
    EXPECT_FALSE(error.hint().empty());
  }
}

std::string with_words(std::size_t words) {
  std::string affinity = "1";
  for (std::size_t i = 1; i < words; ++i) affinity += ",00000000";
  return "<system><cpu numaid=\"0\" affinity=\"" + affinity + "\"/></system>";
}

TEST(NcclXml, MasksEndWhereLinuxEnds) {
  EXPECT_EQ(read(with_words(256)).cpus().first(), 8160);
  EXPECT_THROW(read(with_words(257)), Error);
}

TEST(NcclXml, SwitchesMayNotBeNestedWithoutEnd) {
  const auto nested = [](int depth) {
    std::string inside = gpu("01", "");
    for (int i = 0; i < depth; ++i) inside = "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\">" + inside + "</pci>";
    return one_cpu(inside);
  };
  EXPECT_EQ(read(nested(64)).gpus().size(), 1U);
  EXPECT_THROW(read(nested(65)), Error);
}

TEST(NcclXml, NoPartOfAFileIsTakenForTheWhole) {
  const std::string whole = kMachine;
  const std::size_t end = whole.find("</system>") + std::string("</system>").size();
  EXPECT_NO_THROW(parts_from_nccl_xml(whole.substr(0, end), "it"));
  for (std::size_t size = 0; size < end; ++size) {
    EXPECT_THROW(parts_from_nccl_xml(whole.substr(0, size), "it"), Error) << size;
  }
}

}  // namespace
}  // namespace ddp::topology
