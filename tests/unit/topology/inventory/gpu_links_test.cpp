// NVLink between GPUs: who is connected to whom, and how fast, also with libraries of old drivers.
#include "gpu_facts_fixture.hpp"

namespace ddp::topology::test {
namespace {

double bandwidth(const GpuFacts& facts, const char* a, const char* b) {
  double sum = 0;
  for (const GpuLinkFact& link : facts.links) {
    if (link.a == at(a) && link.b == at(b)) sum += link.mb_per_s;
  }
  return sum;
}

TEST_F(GpuFactsTest, SwitchedLinksConnectAllGpusAtTheSmallerSum) {
  set("COUNT", "4");
  set("SWITCH_LINKS", "18");
  set("LINK_VERSION", "6");
  const Nvml nvml{fake_nvml()};
  const auto facts = all_facts(&nvml);
  EXPECT_EQ(facts.links.size(), 12U) << "4 GPUs, each to 3 others";
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:10:00.0", "0000:20:00.0"), 18 * 25000);
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:20:00.0", "0000:10:00.0"), 18 * 25000);
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:10:00.0", "0000:40:00.0"), 17 * 25000) << "one link of the last GPU is down";
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:40:00.0", "0000:10:00.0"), 17 * 25000);
}

TEST_F(GpuFactsTest, DirectLinksCountForTheirPeerOnly) {
  set("COUNT", "3");
  set("PEER_LINKS", "4");
  set("LINK_VERSION", "5");
  set("DENIED", "2");
  const Nvml nvml{fake_nvml()};
  auto facts = all_facts(&nvml);
  EXPECT_EQ(facts.links.size(), 2U) << "nothing is known about the third GPU";
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:10:00.0", "0000:20:00.0"), 4 * 25000);
  nvidia_gpu("0000:30:00.0");
  facts = all_facts(&nvml);
  EXPECT_EQ(facts.links.size(), 4U) << "to the hidden one, too; it does not tell its own";
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:20:00.0", "0000:30:00.0"), 4 * 25000);
}

TEST_F(GpuFactsTest, BandwidthFollowsTheNumberOfTheLinkVersion) {
  set("COUNT", "2");
  set("PEER_LINKS", "1");
  const std::pair<const char*, double> versions[] = {{"0", 20000}, {"1", 20000}, {"2", 25000}, {"3", 25000},
                                                     {"5", 25000}, {"6", 25000}, {"7", 50000}};
  for (const auto& [version, expected] : versions) {
    set("LINK_VERSION", version);
    const Nvml nvml{fake_nvml()};
    EXPECT_DOUBLE_EQ(bandwidth(all_facts(&nvml), "0000:10:00.0", "0000:20:00.0"), expected)
        << "nvmlNvlinkVersion_t " << version;
  }
  set("CAPABILITY", "9");
  const Nvml nvml{fake_nvml()};
  EXPECT_DOUBLE_EQ(bandwidth(all_facts(&nvml), "0000:10:00.0", "0000:20:00.0"), 25000)
      << "no GPU of Hopper's has NVLink 5";
}

TEST_F(GpuFactsTest, OldLibraryTellsSwitchesByTheirPciClass) {
  set("COUNT", "2");
  set("SWITCH_LINKS", "6");
  set("LINK_VERSION", "2");
  set("MIG", "2");
  const Nvml nvml{old_fake_nvml()};
  EXPECT_THAT(all_facts(&nvml).links, IsEmpty()) << "what is at the other end is not known";
  root.pci("0000:f8:00.0", "0x068000", kNvidia, "nvidia-nvswitch");
  const auto facts = all_facts(&nvml);
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:10:00.0", "0000:20:00.0"), 5 * 25000);
  ASSERT_EQ(facts.gpus.size(), 2U) << "the switch is no GPU";
  EXPECT_THAT(facts.gpus[0].mig, IsEmpty());
  EXPECT_EQ(facts.gpus[0].uuid, "GPU-0");
}

TEST_F(GpuFactsTest, OldLibraryTellsPeersByTheirAddress) {
  set("COUNT", "2");
  set("PEER_LINKS", "2");
  set("LINK_VERSION", "1");
  const Nvml nvml{old_fake_nvml()};
  const auto facts = all_facts(&nvml);
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:20:00.0", "0000:10:00.0"), 2 * 20000);
}

}  // namespace
}  // namespace ddp::topology::test
