#include "topology/placement/rank_resources.hpp"

#include "support/message_check.hpp"
#include "support/topology_samples.hpp"

namespace ddp::topology {
namespace {

TEST(RankResources, AreAMessage) { tests::check_message<RankResources>(); }

TEST(RankResources, WrongProcessorsAreAnError) {
  for (const char* list : {"0-", "x", "3-1", "70000"}) {
    const Bytes bytes = base::ByteWriter{}.integer(std::uint8_t{1}).text(list).bytes();
    EXPECT_THAT(tests::refusal_of<RankResources>(bytes), testing::HasSubstr("reading the rank's resources")) << list;
  }
}

TEST(RankResources, RanksOfOneCgroupShareItsQuota) {
  const auto rank = [](double processors, const char* group) {
    RankResources each;
    take_limits(each, {.processors = processors, .processors_group = group, .processes = -1});
    return each;
  };
  EXPECT_THAT(processor_shares({rank(3, "/job"), rank(3, "/job")}), ElementsAre(1.5, 1.5));
  EXPECT_THAT(processor_shares({rank(3, "/a"), rank(2, "/b"), rank(0, "")}), ElementsAre(3, 2, 0));
  EXPECT_THAT(processor_shares({rank(1e30, "/a")}), ElementsAre(1 << 20));
  EXPECT_THAT(processor_shares({rank(0.0001, "/a")}), ElementsAre(0.001)) << "it stays a limit";
}

TEST(RankResources, OfThisProcess) {
  const auto own = resources_of_process(base::Environment{{{"GPU_DEVICE_ORDINAL", "0"}}});
  EXPECT_GE(own.cpus.count(), 1);
  EXPECT_THAT(own.devices, ElementsAre(Pair("GPU_DEVICE_ORDINAL", "0")));
}

TEST(DeviceVariables, AreThoseOfGpuRuntimes) {
  EXPECT_THAT(
      device_variables(base::Environment{{{"CUDA_VISIBLE_DEVICES", "1"},
                                          {"GPU_DEVICE_ORDINAL", "4"},
                                          {"HIP_VISIBLE_DEVICES", "2"},
                                          {"ROCR_VISIBLE_DEVICES", "3"},
                                          {"ZE_AFFINITY_MASK", "0.1"},
                                          {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
                                          {"SLURM_STEP_GPUS", "0"}}}),
      ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "1"), Pair("GPU_DEVICE_ORDINAL", "4"), Pair("HIP_VISIBLE_DEVICES", "2"),
                  Pair("ROCR_VISIBLE_DEVICES", "3"), Pair("ZE_AFFINITY_MASK", "0.1")));
}

TEST(DeviceVariables, AnEmptyOneHidesAllGpusAndCounts) {
  EXPECT_THAT(device_variables(base::Environment{{{"CUDA_VISIBLE_DEVICES", ""}}}),
              ElementsAre(Pair("CUDA_VISIBLE_DEVICES", "")));
  EXPECT_THAT(device_variables(base::Environment{{}}), IsEmpty());
}

}  // namespace
}  // namespace ddp::topology
