#include "base/cgroup_limits.hpp"

namespace ddp::base {
namespace {

/// A made-up /proc and /sys.
struct CgroupFiles : ::testing::Test {
  CgroupFiles() {
    std::string name = ::testing::TempDir() + "cgroup_XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~CgroupFiles() override { std::filesystem::remove_all(root_); }
  void put(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::filesystem::path root_;
};

TEST_F(CgroupFiles, TheTightestLimitOnTheWayUpCounts) {
  put("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 0);
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 0);
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 1.5);
  put("sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 1.5);
}

TEST_F(CgroupFiles, TheRootIsAContainersOwn) {
  put("proc/self/cgroup", "0::/docker/of/the/host\n");
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 2);
}

TEST_F(CgroupFiles, VersionOneHasTwoFiles) {
  put("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 0);
  put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 0.5);
}

TEST_F(CgroupFiles, AFolderOfVersionOneIsCalledByAllItsControllers) {
  put("proc/self/cgroup", "4:cpu,cpuacct:/x\n9:pids:/x\n");
  put("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "150000\n");
  put("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/pids/x/pids.max", "max\n");
  put("sys/fs/cgroup/pids/pids.max", "300\n");
  const CgroupLimits limits = CgroupLimits::read(root_);
  EXPECT_EQ(limits.processors, 1.5);
  EXPECT_EQ(limits.processors_group, "/x");
  EXPECT_EQ(limits.processes, 300);
}

TEST_F(CgroupFiles, BothVersionsMayBeThere) {
  put("proc/self/cgroup", "5:cpu:/x\n1:name=systemd:/y\n0::/y\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000\n");
  put("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/unified/y/pids.max", "77\n");
  EXPECT_EQ(CgroupLimits::read(root_).processors, 4);
  EXPECT_EQ(CgroupLimits::read(root_).processes, 77);
}

TEST_F(CgroupFiles, ProcessesOfVersionTwo) {
  put("proc/self/cgroup", "0::/job/step\n");
  EXPECT_EQ(CgroupLimits::read(root_).processes, -1);
  put("sys/fs/cgroup/job/step/pids.max", "99\n");
  put("sys/fs/cgroup/job/pids.max", "max\n");
  EXPECT_EQ(CgroupLimits::read(root_).processes, 99);
}

TEST_F(CgroupFiles, WhatMakesNoSenseLimitsNothing) {
  put("proc/self/cgroup", "nonsense\n4:cpu\n0::\n:::\n");
  put("sys/fs/cgroup/cpu.max", "-5 0\n");
  put("sys/fs/cgroup/pids.max", "-3\n");
  const CgroupLimits limits = CgroupLimits::read(root_);
  EXPECT_EQ(limits.processors, 0);
  EXPECT_EQ(limits.processors_group, "");
  EXPECT_EQ(limits.processes, -1);
  EXPECT_EQ(CgroupLimits::read(root_ / "nowhere").processors, 0);
}

TEST(CgroupLimits, WholeProcessorsAreAtLeastOne) {
  const auto whole = [](double processors) {
    return CgroupLimits{.processors = processors, .processes = -1}.whole_processors();
  };
  EXPECT_EQ(whole(0), 0) << "no limit";
  EXPECT_EQ(whole(0.1), 1);
  EXPECT_EQ(whole(2.99), 2);
  EXPECT_EQ(whole(1e30), 1 << 20);
}

}  // namespace
}  // namespace ddp::base
