#include "topology/placement/rank_resources.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

RankResources sample_resources() {
  return {.cpus = CpuSet::parse("0-3,8"),
          .devices = {{"CUDA_VISIBLE_DEVICES", "0,1"}, {"ZE_AFFINITY_MASK", ""}},
          .gpus = {PciAddress::parse("0000:3b:00.0").value(), PciAddress::parse("10000:ff:1f.7").value()},
          .processor_thousandths = 1500,
          .processors_group = "/job"};
}

TEST(RankResources, ComeBackAsTheyWere) {
  const RankResources read = decode_resources(encode(sample_resources()));
  EXPECT_EQ(read.cpus, CpuSet::parse("0-3,8"));
  EXPECT_EQ(read.devices, sample_resources().devices);
  EXPECT_EQ(read.gpus, sample_resources().gpus);
  EXPECT_EQ(read.processor_thousandths, 1500U);
  EXPECT_EQ(read.processors_group, "/job");
  const RankResources nothing = decode_resources(encode(RankResources{.devices = {}}));
  EXPECT_TRUE(nothing.cpus.empty());
  EXPECT_THAT(nothing.devices, IsEmpty());
  EXPECT_THAT(nothing.gpus, IsEmpty());
}

TEST(RankResources, EveryTruncationIsAnError) {
  const Bytes whole = encode(sample_resources());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_resources(std::span{whole}.first(size)), Error) << size;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_resources(longer), Error);
}

TEST(RankResources, WrongProcessorsAreAnError) {
  for (const char* list : {"0-", "x", "3-1", "70000"}) {
    const Bytes bytes = base::ByteWriter{}.text(list).integer(std::uint8_t{0}).bytes();
    EXPECT_THROW(decode_resources(bytes), Error) << list;
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
