#include "topology/placement/gpu_settings.hpp"

#include "unit/topology/settings_node.hpp"

namespace ddp::topology::settings_test {
namespace {

Node node_with_gpus(int count, Vendor vendor, const std::vector<int>& rank_gpus) {
  Node node;
  for (int i = 0; i < count; ++i) node.add_gpu(vendor);
  for (const int gpu : rank_gpus) node.add_rank(gpu);
  return node;
}

TEST(GpuSettings, TheNaturalOrderNeedsNoList) {
  EXPECT_EQ(value_of(node_with_gpus(4, Vendor::nvidia, {0, 1, 2, 3}).settings(), "CUDA_VISIBLE_DEVICES"), "-");
  EXPECT_EQ(value_of(node_with_gpus(4, Vendor::nvidia, {0, 1}).settings(), "CUDA_VISIBLE_DEVICES"), "-");
  EXPECT_EQ(value_of(node_with_gpus(2, Vendor::nvidia, {0, 0, 1, 1}).settings(), "CUDA_VISIBLE_DEVICES"), "-");
}

TEST(GpuSettings, AllShowsTheGpusOfTheRanksFirst) {
  const Node node = node_with_gpus(4, Vendor::nvidia, {1, 3});
  for (const int rank : {0, 1}) EXPECT_EQ(value_of(node.settings(rank), "CUDA_VISIBLE_DEVICES"), "1,3,0,2");
  EXPECT_EQ(value_of(node_with_gpus(3, Vendor::nvidia, {2, 2, 1}).settings(), "CUDA_VISIBLE_DEVICES"), "2,1,0");
  EXPECT_EQ(value_of(node_with_gpus(4, Vendor::amd, {1, 3}).settings(), "ROCR_VISIBLE_DEVICES"), "1,3,0,2");
  EXPECT_EQ(value_of(node_with_gpus(4, Vendor::intel, {1, 3}).settings(), "ZE_AFFINITY_MASK"), "-")
      << "Level Zero would not reorder";
}

TEST(GpuSettings, NumbersAreThoseAmongVisibleGpus) {
  Node node = node_with_gpus(4, Vendor::nvidia, {3, 1});
  node.parts.gpus[0].visible = false;
  EXPECT_EQ(value_of(node.settings(), "CUDA_VISIBLE_DEVICES"), "2,0,1");
  node.options.gpus = GpuVisibility::one;
  EXPECT_EQ(value_of(node.settings(0), "CUDA_VISIBLE_DEVICES"), "2");
  EXPECT_EQ(value_of(node.settings(1), "CUDA_VISIBLE_DEVICES"), "0");
}

TEST(GpuSettings, EachVendorCountsByItself) {
  Node node;
  node.add_gpu(Vendor::amd);
  node.add_gpu(Vendor::nvidia);
  node.add_gpu(Vendor::nvidia);
  node.add_rank(2);
  EXPECT_EQ(value_of(node.settings(), "CUDA_VISIBLE_DEVICES"), "1,0");
  EXPECT_EQ(value_of(node.settings(), "ROCR_VISIBLE_DEVICES"), "-");
}

TEST(GpuSettings, OneShowsTheRanksOwnGpu) {
  for (const auto& [vendor, name] :
       {std::pair{Vendor::nvidia, "CUDA_VISIBLE_DEVICES"}, std::pair{Vendor::amd, "ROCR_VISIBLE_DEVICES"},
        std::pair{Vendor::intel, "ZE_AFFINITY_MASK"}}) {
    Node node = node_with_gpus(2, vendor, {0, 1});
    node.options.gpus = GpuVisibility::one;
    EXPECT_EQ(value_of(node.settings(0), name), "0");
    EXPECT_EQ(value_of(node.settings(1), name), "1");
  }
}

TEST(GpuSettings, LevelZeroIsToldToCountCardsByPciAddress) {
  Node node = node_with_gpus(2, Vendor::intel, {0, 1});
  EXPECT_EQ(value_of(node.settings(), "ZE_ENABLE_PCI_ID_DEVICE_ORDER"), "-");
  node.options.gpus = GpuVisibility::one;
  EXPECT_EQ(value_of(node.settings(), "ZE_ENABLE_PCI_ID_DEVICE_ORDER"), "1");
  EXPECT_EQ(value_of(node.settings(), "ZE_FLAT_DEVICE_HIERARCHY"), "COMPOSITE");
  node.environment["ZE_FLAT_DEVICE_HIERARCHY"] = "FLAT";
  EXPECT_THAT(conflict(node, "ZE_FLAT_DEVICE_HIERARCHY"), HasSubstr("tiles"));
  EXPECT_EQ(value_of(node.settings(), "ZE_AFFINITY_MASK"), "-");
}

TEST(GpuSettings, NoneSetsNothing) {
  Node node = node_with_gpus(4, Vendor::nvidia, {1, 3});
  node.options.gpus = GpuVisibility::none;
  EXPECT_EQ(value_of(node.settings(), "CUDA_VISIBLE_DEVICES"), "-");
  EXPECT_EQ(value_of(node.settings(), "CUDA_DEVICE_ORDER"), "-");
}

TEST(GpuSettings, CudaNumbersByPciAddressLikeEverybodyElse) {
  EXPECT_EQ(value_of(node_with_gpus(1, Vendor::nvidia, {0}).settings(), "CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_EQ(value_of(node_with_gpus(1, Vendor::amd, {0}).settings(), "CUDA_DEVICE_ORDER"), "-");
  Node node = node_with_gpus(2, Vendor::nvidia, {0, 1});
  node.environment["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST";
  EXPECT_EQ(conflict(node, "CUDA_DEVICE_ORDER"), "") << "all are equally fast";
  node.parts.gpus[1].model = "another";
  EXPECT_THAT(conflict(node, "CUDA_DEVICE_ORDER"), HasSubstr("PCI_BUS_ID"));
}

TEST(GpuSettings, AUsersListIsKept) {
  Node node = node_with_gpus(4, Vendor::nvidia, {3, 1});
  node.environment["CUDA_VISIBLE_DEVICES"] = "3,1";
  EXPECT_EQ(value_of(node.settings(), "CUDA_VISIBLE_DEVICES"), "(user) 3,1");
  EXPECT_EQ(conflict(node, "CUDA_VISIBLE_DEVICES"), "");
}

TEST(GpuSettings, ListsThatLeaveTooFewGpusAreReported) {
  Node node = node_with_gpus(4, Vendor::nvidia, {0, 1});
  node.environment["CUDA_VISIBLE_DEVICES"] = "1";
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("leaves 1 of 4 GPUs for the 2 ranks"));
  node.environment["CUDA_VISIBLE_DEVICES"] = "1,9,2";
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("stops at 9"));
  node.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("hides all 4 GPUs"));
  Node without = node_with_gpus(0, Vendor::nvidia, {});
  without.add_rank();
  without.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(conflict(without, "CUDA_VISIBLE_DEVICES"), "") << "there is nothing to hide";
}

TEST(GpuSettings, OneNarrowsAUsersListToTheRanksEntry) {
  Node node = node_with_gpus(4, Vendor::nvidia, {3, 1});
  node.options.gpus = GpuVisibility::one;
  node.environment["CUDA_VISIBLE_DEVICES"] = "GPU-3,GPU-1";
  EXPECT_EQ(value_of(node.settings(0), "CUDA_VISIBLE_DEVICES"), "GPU-3");
  EXPECT_EQ(value_of(node.settings(1), "CUDA_VISIBLE_DEVICES"), "GPU-1");
  EXPECT_THAT(find(node.settings(), "CUDA_VISIBLE_DEVICES")->reason, HasSubstr("narrowed from 'GPU-3,GPU-1'"));
  node.environment["CUDA_VISIBLE_DEVICES"] = "GPU-3";
  EXPECT_EQ(value_of(node.settings(0), "CUDA_VISIBLE_DEVICES"), "(user) GPU-3") << "there is nothing to narrow";
  node.environment["CUDA_VISIBLE_DEVICES"] = "0,2";
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("does not name GPU 0000:04:00.0"));
}

TEST(GpuSettings, OneNarrowsTheVariableThatActsLast) {
  Node node = node_with_gpus(4, Vendor::amd, {3, 1});
  node.options.gpus = GpuVisibility::one;
  node.environment = {{"ROCR_VISIBLE_DEVICES", "1,3"}, {"HIP_VISIBLE_DEVICES", "1,0"}};
  EXPECT_EQ(value_of(node.settings(0), "ROCR_VISIBLE_DEVICES"), "(user) 1,3");
  EXPECT_EQ(value_of(node.settings(0), "HIP_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(value_of(node.settings(1), "HIP_VISIBLE_DEVICES"), "0");
}

TEST(GpuSettings, HipsGpusMayBeChosenByCudasVariable) {
  Node node = node_with_gpus(4, Vendor::amd, {1, 2});
  node.environment = {{"CUDA_VISIBLE_DEVICES", "1,2"}};
  EXPECT_EQ(value_of(node.settings(), "CUDA_VISIBLE_DEVICES"), "(user) 1,2");
  EXPECT_EQ(value_of(node.settings(), "ROCR_VISIBLE_DEVICES"), "-") << "it would change what the numbers mean";
  EXPECT_EQ(conflict(node, "CUDA_VISIBLE_DEVICES"), "");
  node.options.gpus = GpuVisibility::one;
  EXPECT_EQ(value_of(node.settings(0), "CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(value_of(node.settings(1), "CUDA_VISIBLE_DEVICES"), "2");
  node.environment = {{"CUDA_VISIBLE_DEVICES", "7"}};
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("does not name GPU"));
  Node hidden = node_with_gpus(4, Vendor::amd, {});
  hidden.add_rank();
  hidden.environment = {{"CUDA_VISIBLE_DEVICES", "7"}};
  EXPECT_THAT(conflict(hidden, "CUDA_VISIBLE_DEVICES"), HasSubstr("hides all 4 GPUs"));
}

TEST(GpuSettings, OfAMachineWithBothVendorsEachVariableIsSetOnce) {
  Node node = node_with_gpus(2, Vendor::nvidia, {1});
  node.add_gpu(Vendor::amd);
  node.environment = {{"CUDA_VISIBLE_DEVICES", "1"}};
  const auto settings = node.settings();
  EXPECT_EQ(std::count_if(settings.begin(), settings.end(),
                          [](const Setting& each) { return each.name == "CUDA_VISIBLE_DEVICES"; }),
            1);
  EXPECT_EQ(conflict(node, "CUDA_VISIBLE_DEVICES"), "") << "the rank has a GPU of NVIDIA's";
}

TEST(GpuSettings, WhatGpuDeviceOrdinalLeavesIsSaidToHip) {
  Node node = node_with_gpus(4, Vendor::amd, {1, 2});
  node.environment = {{"GPU_DEVICE_ORDINAL", "1,2"}};
  EXPECT_EQ(value_of(node.settings(), "ROCR_VISIBLE_DEVICES"), "1,2");
  EXPECT_EQ(value_of(node.settings(), "GPU_DEVICE_ORDINAL"), "0,1");
  node.options.gpus = GpuVisibility::one;
  EXPECT_EQ(value_of(node.settings(1), "ROCR_VISIBLE_DEVICES"), "2");
  EXPECT_EQ(value_of(node.settings(1), "GPU_DEVICE_ORDINAL"), "0");
  node.options.gpus = GpuVisibility::all;
  node.environment = {{"ROCR_VISIBLE_DEVICES", "3,2,1"}, {"GPU_DEVICE_ORDINAL", "1,2"}, {"HIP_VISIBLE_DEVICES", "1,0"}};
  EXPECT_EQ(value_of(node.settings(), "ROCR_VISIBLE_DEVICES"), "1,2") << "of 3,2,1 these are 2,1, and then 1,2";
  EXPECT_EQ(value_of(node.settings(), "GPU_DEVICE_ORDINAL"), "0,1");
  EXPECT_EQ(value_of(node.settings(), "HIP_VISIBLE_DEVICES"), "0,1");
  node.options.gpus = GpuVisibility::none;
  EXPECT_THAT(conflict(node, "GPU_DEVICE_ORDINAL"), HasSubstr("HIP does not"));
  EXPECT_EQ(value_of(node.settings(), "ROCR_VISIBLE_DEVICES"), "(user) 3,2,1");
}

TEST(GpuSettings, AListThatNamesAGpuTwiceIsReported) {
  Node node = node_with_gpus(4, Vendor::nvidia, {});
  node.add_rank();
  node.environment["CUDA_VISIBLE_DEVICES"] = "1,1";
  EXPECT_THAT(conflict(node, "CUDA_VISIBLE_DEVICES"), HasSubstr("hides all 4 GPUs, because 1 names a GPU that is in"));
}

TEST(GpuSettings, RanksOfAGpuWithMigGetOnePartEach) {
  Node node = node_with_gpus(2, Vendor::nvidia, {0, 1, 1, 1});
  node.parts.gpus[1].mig = {{"MIG-a", "1g"}, {"MIG-b", "1g"}};
  for (const GpuVisibility visibility : {GpuVisibility::all, GpuVisibility::one}) {
    node.options.gpus = visibility;
    EXPECT_EQ(value_of(node.settings(0), "CUDA_VISIBLE_DEVICES"), "GPU-0") << "CUDA shows no GPU beside a MIG device";
    EXPECT_EQ(value_of(node.settings(1), "CUDA_VISIBLE_DEVICES"), "MIG-a");
    EXPECT_EQ(value_of(node.settings(2), "CUDA_VISIBLE_DEVICES"), "MIG-b");
    EXPECT_EQ(value_of(node.settings(3), "CUDA_VISIBLE_DEVICES"), "MIG-a") << "there are no more";
  }
  node.environment["CUDA_VISIBLE_DEVICES"] = "MIG-b,MIG-a";
  EXPECT_EQ(value_of(node.settings(1), "CUDA_VISIBLE_DEVICES"), "MIG-b");
  EXPECT_EQ(value_of(node.settings(2), "CUDA_VISIBLE_DEVICES"), "MIG-a");
}

}  // namespace
}  // namespace ddp::topology::settings_test
