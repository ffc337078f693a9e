// Topologies from parts: what does not fit together is refused, distances include links, equal machines have one shape.
#include <ddp/error.hpp>
#include <ddp/topology.hpp>
#include "support/error_of.hpp"

namespace ddp {
namespace {

Gpu gpu(int index, Locality place) {
  Gpu made;
  made.index = index;
  made.pci.bus = static_cast<std::uint8_t>(index + 1);
  made.model = "H200";
  made.locality = std::move(place);
  return made;
}

// Two packages with one NUMA node and two cores each; a GPU at each, joined by a link.
Topology::Parts parts() {
  Topology::Parts made;
  made.packages = {{.os_index = 0, .cpus = CpuSet::parse("0-1")}, {.os_index = 1, .cpus = CpuSet::parse("2-3")}};
  made.numa_nodes = {{.os_index = 0, .package = 0, .cpus = CpuSet::parse("0-1"), .memory_bytes = 1},
                     {.os_index = 8, .package = 1, .cpus = CpuSet::parse("2-3"), .memory_bytes = 1}};
  for (int core = 0; core < 4; ++core) {
    made.cores.push_back({.numa_node = core / 2, .package = core / 2, .cpus = CpuSet({core})});
  }
  made.gpus = {gpu(0, {.package = 0, .numa_node = 0, .bridges = {0}}),
               gpu(1, {.package = 1, .numa_node = 1, .bridges = {1}})};
  made.gpu_links = {0, 50'000, 50'000, 0};
  made.source = "a test";
  return made;
}

TEST(Topology, KnowsItsProcessors) {
  const Topology topology = Topology::from_parts(parts());
  EXPECT_EQ(topology.cpus().to_string(), "0-3");
  EXPECT_EQ(topology.allowed_cpus(), topology.cpus()) << "nothing said: all";
  auto limited = parts();
  limited.allowed = CpuSet::parse("1-2,77");
  EXPECT_EQ(Topology::from_parts(limited).allowed_cpus().to_string(), "1-2");
}

TEST(Topology, RefusesPartsThatDoNotFitTogether) {
  const std::pair<std::function<void(Topology::Parts&)>, const char*> mistakes[] = {
      {[](auto& p) { p.cores.clear(); }, "no cores"},
      {[](auto& p) { p.cores[1].cpus = {}; }, "core 1 has no processor"},
      {[](auto& p) { p.cores[1].cpus = p.cores[0].cpus; }, "belongs to an earlier core"},
      {[](auto& p) { p.cores[1].numa_node = 2; }, "core 1 lies in package 0 and NUMA node 2"},
      {[](auto& p) { p.cores[1].package = -2; }, "core 1"},
      {[](auto& p) { p.numa_nodes[1].package = 7; }, "NUMA node 1"},
      {[](auto& p) { p.gpus[1].index = 0; }, "GPU 1 has index 0"},
      {[](auto& p) { p.gpus[0].locality.numa_node = 9; }, "GPU 0 lies in"},
      {[](auto& p) { p.nics.resize(2); }, "NIC 1 has index 0"},
      {[](auto& p) { p.gpu_links.pop_back(); }, "3 bandwidths for 4 pairs"},
      {[](auto& p) { p.allowed = CpuSet::parse("9"); }, "none of its processors (0-3) is allowed (9)"},
  };
  for (const auto& [make, text] : mistakes) {
    auto broken = parts();
    make(broken);
    const auto error = ddp::test::error_of([&] { Topology::from_parts(broken); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error->what(), AllOf(HasSubstr(text), HasSubstr("a test")));
  }
}

TEST(Topology, LinksCountBeforePci) {
  const Topology topology = Topology::from_parts(parts());
  const Gpu& a = topology.gpus()[0];
  const Gpu& b = topology.gpus()[1];
  EXPECT_EQ(topology.distance(a, a).path, Path::self);
  EXPECT_EQ(topology.distance(a, b).path, Path::nvlink);
  EXPECT_EQ(topology.link_bandwidth(a, b), 50'000);
  auto without = parts();
  without.gpu_links = {};
  EXPECT_EQ(Topology::from_parts(without).distance(a, b).path, Path::sys);
  EXPECT_EQ(topology.distance(a.locality, topology.numa_nodes()[0]).path, Path::phb);
  EXPECT_EQ(topology.distance(a.locality, topology.numa_nodes()[1]).path, Path::sys);
  EXPECT_TRUE(topology.distance(a.locality, topology.numa_nodes()[1]).other_package);
}

TEST(Topology, DevicesOutliveIt) {
  std::vector<Gpu> gpus;
  {
    const Topology topology = Topology::from_parts(parts());
    gpus = topology.gpus();
  }
  EXPECT_EQ(gpus.at(1).model, "H200");
}

TEST(Topology, MachinesThatLookTheSameHaveOneShape) {
  const std::string shape = Topology::from_parts(parts()).shape();
  auto same = parts();
  same.gpus[0].uuid = "GPU-another";
  same.source = "another node";
  EXPECT_EQ(Topology::from_parts(same).shape(), shape);
  const std::function<void(Topology::Parts&)> differences[] = {
      [](auto& p) { p.gpus[1].visible = false; },
      [](auto& p) { p.gpus[1].model = "T4"; },
      [](auto& p) { p.gpus[1].locality.numa_node = 0; },
      [](auto& p) { p.gpu_links = {}; },
      [](auto& p) { p.cores.pop_back(); },
      [](auto& p) { p.allowed = CpuSet::parse("0"); },
      [](auto& p) { p.nics.emplace_back().interface = "eth0"; },
  };
  int number = 0;
  for (const auto& make : differences) {
    auto other = parts();
    make(other);
    EXPECT_NE(Topology::from_parts(other).shape(), shape) << number++;
  }
}

}  // namespace
}  // namespace ddp
