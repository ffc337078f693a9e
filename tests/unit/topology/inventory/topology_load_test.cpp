// Reading topologies: this machine, XML, synthetic descriptions, and every kind of file that is none.
#include <hwloc.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>
#include "support/error_of.hpp"

namespace ddp {
namespace {

struct TopologyFile : testing::Test {
  void TearDown() override { std::filesystem::remove(path_); }
  std::string write(std::string_view text) {
    std::ofstream(path_) << text;
    return path_;
  }
  const std::string path_ = fmt::format("{}/ddp-topology-{}.xml", testing::TempDir(), ::getpid());
};

void expect_refused(const std::string& path, ErrorCode code, std::string_view text) {
  const Error error = ddp::test::thrown_by([&] { Topology::from_xml_file(path); });
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(text));
  EXPECT_THAT(error.what(), HasSubstr(path));
}

TEST_F(TopologyFile, WhatIsNoneIsRefusedWithAReason) {
  expect_refused("/nonexistent/x.xml", ErrorCode::not_found, "ENOENT");
  expect_refused("/", ErrorCode::system, "EISDIR");
  expect_refused(write(""), ErrorCode::invalid_argument, "it is empty");
  expect_refused(write("\n \n"), ErrorCode::invalid_argument, "it is empty");
  expect_refused(write("hello"), ErrorCode::invalid_argument, "not an hwloc topology");
  expect_refused(write("<html><body/></html>"), ErrorCode::invalid_argument, "not an hwloc topology");
  expect_refused(write("<?xml version=\"1.0\"?>\n<topology>\n<object type=\"Machine\"/>\n</topology>"),
                 ErrorCode::invalid_argument, "hwloc 1");
  expect_refused(write("<topology version=\"2.0\">\n<object type=\"Machine\"/>\n</topology>"),
                 ErrorCode::invalid_argument, "hwloc cannot read it");
}

TEST_F(TopologyFile, AFileOfANewerHwlocIsNamedWithTheRemedy) {
  const unsigned ours = hwloc_get_api_version() >> 16U;
  for (const unsigned newer : {ours + 1, ours + 8}) {
    const std::string path = write(fmt::format(
        "<?xml version=\"1.0\"?>\n<topology version=\"{}.0\">\n<object type=\"Machine\"/>\n</topology>", newer));
    expect_refused(path, ErrorCode::invalid_argument, fmt::format("it was written by hwloc {}", newer));
    expect_refused(path, ErrorCode::invalid_argument, fmt::format("--export-xml-flags v{}", ours));
  }
  expect_refused(write("<topology version='1.11'>\n<object type=\"Machine\"/>\n</topology>"),
                 ErrorCode::invalid_argument, "it was written by hwloc 1");
}

TEST_F(TopologyFile, TruncatedAtAnyPlaceIsRefused) {
  const std::string whole = Topology::synthetic("pack:2 core:2 pu:1").to_xml();
  const std::size_t end = whole.find("</topology>");
  for (std::size_t size = 0; size < end; size += 97) {
    const std::string path = write(whole.substr(0, size));
    EXPECT_THROW(Topology::from_xml_file(path), Error) << size;
  }
  EXPECT_NO_THROW(Topology::from_xml_file(write(whole)));
}

TEST(SyntheticTopology, HasTheCoresThatWereAskedFor) {
  const Topology topology = Topology::synthetic("pack:2 numa:2 core:4 pu:2");
  EXPECT_EQ(topology.packages().size(), 2U);
  EXPECT_EQ(topology.numa_nodes().size(), 4U);
  ASSERT_EQ(topology.cores().size(), 16U);
  EXPECT_EQ(topology.cpus().count(), 32);
  EXPECT_EQ(topology.cores()[0].cpus.count(), 2);
  EXPECT_EQ(topology.cores()[15].numa_node, 3);
  EXPECT_EQ(topology.cores()[15].package, 1);
  EXPECT_EQ(topology.numa_nodes()[2].package, 1);
  EXPECT_TRUE(topology.gpus().empty());
  for (const char* nonsense : {"", "no:such", "pack:0", "pack:2 core"}) {
    EXPECT_THROW(Topology::synthetic(nonsense), Error) << nonsense;
  }
}

TEST(SyntheticTopology, XmlGivesTheSameMachineAgain) {
  const Topology topology = Topology::synthetic("pack:2 numa:2 core:4 pu:2");
  const Topology again = Topology::from_xml(topology.to_xml());
  EXPECT_EQ(again.shape(), topology.shape());
  EXPECT_EQ(again.cpus(), topology.cpus());
}

TEST(LiveTopology, IsThisMachine) {
  const Topology topology = Topology::live();
  EXPECT_GE(topology.cores().size(), 1U);
  EXPECT_TRUE(topology.cpus().contains(Binding::current().cpus)) << topology.cpus().to_string();
  EXPECT_TRUE(topology.allowed_cpus().contains(Binding::current().cpus));
  EXPECT_EQ(topology.source(), "this machine");
  const auto loopback = [](const NetworkInterface& interface) { return interface.kind == InterfaceKind::loopback; };
  EXPECT_TRUE(std::any_of(topology.interfaces().begin(), topology.interfaces().end(), loopback));
}

TEST(LiveTopology, XmlCarriesWhatHwlocDoesNotKnow) {
  const Topology topology = Topology::live();
  const Topology again = Topology::from_xml(topology.to_xml());
  EXPECT_EQ(again.shape(), topology.shape());
  ASSERT_EQ(again.interfaces().size(), topology.interfaces().size());
  for (std::size_t i = 0; i < again.interfaces().size(); ++i) {
    EXPECT_EQ(again.interfaces()[i].name, topology.interfaces()[i].name);
    EXPECT_EQ(again.interfaces()[i].kind, topology.interfaces()[i].kind);
    EXPECT_EQ(again.interfaces()[i].addresses, topology.interfaces()[i].addresses);
  }
}

TEST_F(TopologyFile, HwlocsOwnVariablesReplaceTheMachine) {
  const Topology other = Topology::synthetic("pack:1 core:3 pu:1");
  ::setenv("HWLOC_XMLFILE", write(other.to_xml()).c_str(), 1);
  const Topology topology = Topology::live();
  ::unsetenv("HWLOC_XMLFILE");
  EXPECT_EQ(topology.cores().size(), 3U);
  EXPECT_TRUE(topology.interfaces().empty()) << "the interfaces of this machine are not that one's";
  EXPECT_NE(topology.source(), "this machine");
  ::setenv("HWLOC_XMLFILE", "/nonexistent/x.xml", 1);
  EXPECT_THROW(Topology::live(), Error) << "not another machine than the one that was asked for";
  ::unsetenv("HWLOC_XMLFILE");
}

}  // namespace
}  // namespace ddp
