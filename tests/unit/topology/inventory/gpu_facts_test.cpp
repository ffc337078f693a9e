// Which GPUs a machine has: what NVML and the kernel tell of each, and why ranks cannot use some.
#include "gpu_facts_fixture.hpp"

namespace ddp::topology::test {
namespace {

TEST_F(GpuFactsTest, NvmlTellsNameUuidAndNumber) {
  set("COUNT", "2");
  nvidia_gpu("0000:20:00.0");
  const Nvml nvml{fake_nvml()};
  const auto facts = all_facts(&nvml);
  ASSERT_EQ(facts.gpus.size(), 2U) << "also a GPU that /sys does not show, and none twice";
  EXPECT_EQ(facts.gpus[0].pci, at("0000:10:00.0"));
  EXPECT_EQ(facts.gpus[1].pci, at("0000:20:00.0"));
  EXPECT_EQ(facts.gpus[1].nvml_index, 1);
  EXPECT_EQ(facts.gpus[1].model, "NVIDIA H200");
  EXPECT_EQ(facts.gpus[1].uuid, "GPU-1");
  EXPECT_THAT(facts.gpus[1].mig, IsEmpty());
  EXPECT_TRUE(facts.gpus[1].visible);
  EXPECT_EQ(facts.gpus[1].hidden_reason, "");
  EXPECT_THAT(facts.links, IsEmpty());
}

TEST_F(GpuFactsTest, GpuThatNvmlDeniesIsHiddenAndNumbersStay) {
  set("COUNT", "3");
  set("DENIED", "1");
  for (const char* address : {"0000:10:00.0", "0000:20:00.0", "0000:30:00.0"}) nvidia_gpu(address);
  const Nvml nvml{fake_nvml()};
  const auto hidden = fact("0000:20:00.0", &nvml);
  EXPECT_FALSE(hidden.visible);
  EXPECT_THAT(hidden.hidden_reason, HasSubstr("NVML does not show it"));
  EXPECT_FALSE(hidden.nvml_index);
  EXPECT_EQ(fact("0000:30:00.0", &nvml).nvml_index, 2);
  EXPECT_TRUE(fact("0000:30:00.0", &nvml).visible);
}

TEST_F(GpuFactsTest, ReasonsThatAreNotNvmlsComeFirst) {
  nvidia_gpu("0000:10:00.0", "vfio-pci");
  nvidia_gpu("0000:20:00.0", "");
  nvidia_gpu("0000:30:00.0", "nouveau");
  set("COUNT", "0");
  const Nvml nvml{fake_nvml()};
  for (const Nvml* source : {static_cast<const Nvml*>(nullptr), &nvml}) {
    EXPECT_EQ(fact("0000:10:00.0", source).hidden_reason, "given to a virtual machine (vfio-pci)");
    EXPECT_EQ(fact("0000:20:00.0", source).hidden_reason, "no driver is bound to it");
    EXPECT_THAT(fact("0000:30:00.0", source).hidden_reason, HasSubstr("nouveau"));
    for (const char* address : {"0000:10:00.0", "0000:20:00.0", "0000:30:00.0"}) {
      EXPECT_FALSE(fact(address, source).visible);
    }
  }
}

TEST_F(GpuFactsTest, MigPartsWithTheirNames) {
  set("COUNT", "1");
  set("MIG", "2");
  const Nvml nvml{fake_nvml()};
  const auto gpu = fact("0000:10:00.0", &nvml);
  ASSERT_EQ(gpu.mig.size(), 2U) << "numbers of parts have gaps";
  EXPECT_EQ(gpu.mig[0].uuid, "MIG-0-1");
  EXPECT_EQ(gpu.mig[0].name, "1g.18gb");
  EXPECT_EQ(gpu.mig[1].uuid, "MIG-0-3");
  EXPECT_TRUE(gpu.visible);
}

TEST_F(GpuFactsTest, GpuWithMigButNoPartForUsIsHidden) {
  set("COUNT", "1");
  set("MIG", "0");
  const Nvml nvml{fake_nvml()};
  const auto gpu = fact("0000:10:00.0", &nvml);
  EXPECT_FALSE(gpu.visible);
  EXPECT_THAT(gpu.hidden_reason, HasSubstr("MIG"));
}

TEST_F(GpuFactsTest, UuidThatTheDriverDoesNotKnowYetIsLeftOut) {
  nvidia_gpu("0000:10:00.0");
  root.write("proc/driver/nvidia/gpus/0000:10:00.0/information",
             "GPU UUID: \t GPU-\?\?\?\?\?\?\?\?\nDevice Minor: \t 0");
  EXPECT_EQ(fact("0000:10:00.0").uuid, "");
}

TEST_F(GpuFactsTest, WhatIsNoGpuIsLeftOut) {
  root.pci("0000:03:00.0", kVgaClass, "0x1a03", "ast");  // the display of a management controller
  root.pci("0000:3b:00.0", "0x020000", "0x15b3", "mlx5_core");
  root.pci("0000:04:00.0", kAcceleratorClass, kIntel, "");
  root.folder(root.pci("0000:00:02.0", kVgaClass, kIntel, "i915") / "drm/renderD128");  // of the processor
  const auto card = root.pci("0000:07:00.0", kVgaClass, kIntel, "i915");
  EXPECT_THAT(all_facts(nullptr).gpus, IsEmpty());
  root.folder(card / "drm/renderD129");
  EXPECT_EQ(all_facts(nullptr).gpus.size(), 1U);
}

}  // namespace
}  // namespace ddp::topology::test
