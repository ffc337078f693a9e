// Which GPUs a process may use by their device files: missing ones, permissions, device cgroups, render nodes.
#include "gpu_facts_fixture.hpp"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <system_error>

#include "topology/inventory/gpu_facts.hpp"

namespace ddp::topology::test {
namespace {

TEST_F(GpuFactsTest, WithoutNvmlTheDeviceFileDecides) {
  nvidia_gpu("0000:10:00.0");
  EXPECT_THAT(fact("0000:10:00.0").hidden_reason, HasSubstr("does not list it"));
  nvidia_information("0000:10:00.0", 3);
  const auto missing = fact("0000:10:00.0");
  EXPECT_FALSE(missing.visible);
  EXPECT_THAT(missing.hidden_reason, HasSubstr("no device file: /dev/nvidia3"));
  root.write("dev/nvidia3", "");
  const auto there = fact("0000:10:00.0");
  EXPECT_TRUE(there.visible);
  EXPECT_EQ(there.hidden_reason, "");
  EXPECT_EQ(there.model, "NVIDIA H200");
  EXPECT_EQ(there.uuid, "GPU-3a1b");
  EXPECT_FALSE(there.nvml_index);
}

/// Takes root's right to pass over file permissions from this thread, as long as it lives.
class WithoutRootsWay {
 public:
  WithoutRootsWay() {
    EXPECT_EQ(::syscall(SYS_capget, &header_, before_.data()), 0);
    auto without = before_;
    without[0].effective &= ~((1U << CAP_DAC_OVERRIDE) | (1U << CAP_DAC_READ_SEARCH));
    EXPECT_EQ(::syscall(SYS_capset, &header_, without.data()), 0);
  }
  WithoutRootsWay& operator=(WithoutRootsWay&&) = delete;
  ~WithoutRootsWay() { ::syscall(SYS_capset, &header_, before_.data()); }

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> before_{};
};

TEST_F(GpuFactsTest, DeviceFileWithoutPermissionHidesTheGpu) {
  nvidia_gpu("0000:10:00.0");
  nvidia_information("0000:10:00.0", 0);
  root.write("dev/nvidia0", "");
  std::filesystem::permissions(root.path() / "dev/nvidia0", std::filesystem::perms::owner_read);
  GpuFact gpu;
  {
    const WithoutRootsWay ordinary;
    gpu = fact("0000:10:00.0");
  }
  EXPECT_FALSE(gpu.visible);
  EXPECT_EQ(gpu.hidden_reason, "its device file /dev/nvidia0 may not be opened (EACCES (13))");
}

// Three tasks whose device cgroups leave each one GPU, as NVML, the driver's files and access(2) show it to them.
TEST_F(GpuFactsTest, TasksThatAllSeeGpuZeroAreToldApartByItsAddress) {
  const std::vector<std::string> addresses{"0000:10:00.0", "0000:20:00.0", "0000:30:00.0"};
  set("COUNT", "3");
  for (int gpu = 0; gpu < 3; ++gpu) {
    nvidia_gpu(addresses[static_cast<std::size_t>(gpu)]);
    nvidia_information(addresses[static_cast<std::size_t>(gpu)], 2 - gpu);  // minors are in no order
    root.write("dev/nvidia" + std::to_string(gpu), "");
  }
  const WithoutRootsWay ordinary;
  for (int task = 0; task < 3; ++task) {
    const std::string& own = addresses[static_cast<std::size_t>(task)];
    for (int gpu = 0; gpu < 3; ++gpu) {
      std::filesystem::permissions(root.path() / ("dev/nvidia" + std::to_string(2 - gpu)),
                                   std::filesystem::perms{gpu == task ? 0600U : 0U});
    }
    set("CGROUP", std::to_string(task));
    const Nvml nvml{fake_nvml()};
    ASSERT_EQ(nvml.gpus().size(), 1U);
    EXPECT_EQ(nvml.gpus()[0].index, 0);
    EXPECT_EQ(nvml.gpus()[0].pci, at(own.c_str()));
    EXPECT_EQ(nvml.gpus()[0].uuid, "GPU-" + std::to_string(task));
    EXPECT_EQ(accessible_gpus(root.path()), std::vector{at(own.c_str())});
    const GpuFacts facts = collect_gpu_facts(root.path(), nvml.gpus());
    ASSERT_EQ(facts.gpus.size(), 3U) << "the others are known, too";
    for (const GpuFact& gpu : facts.gpus) {
      EXPECT_EQ(gpu.visible, gpu.pci == at(own.c_str()));
      EXPECT_NE(gpu.uuid, "");
    }
  }
}

// As Slurm's task/cgroup makes them for ConstrainDevices, with cgroup v1 (v2 wants a BPF program).
TEST_F(GpuFactsTest, AccessIsWhatADeviceCgroupPermits) {
  constexpr unsigned kNvidiaMajor = 195;  // Linux, Documentation/admin-guide/devices.txt
  const std::vector<std::string> addresses{"0000:10:00.0", "0000:20:00.0", "0000:30:00.0"};
  root.folder("dev");
  for (unsigned gpu = 0; gpu < 3; ++gpu) {
    nvidia_gpu(addresses[gpu]);
    nvidia_information(addresses[gpu], static_cast<int>(gpu));
    const auto file = root.path() / ("dev/nvidia" + std::to_string(gpu));
    if (::mknod(file.c_str(), S_IFCHR | 0666, makedev(kNvidiaMajor, gpu)) != 0) GTEST_SKIP() << "may not make devices";
  }
  for (unsigned own = 0; own < 3; ++own) {
    const std::filesystem::path group = "/sys/fs/cgroup/devices/ddp-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(group, error)) GTEST_SKIP() << "may not make cgroups (v1, devices)";
    const pid_t task = ::fork();
    if (task == 0) {
      std::ofstream(group / "cgroup.procs") << "0\n";
      for (unsigned gpu = 0; gpu < 3; ++gpu) {
        if (gpu != own) std::ofstream(group / "devices.deny") << "c " << kNvidiaMajor << ":" << gpu << " rwm\n";
      }
      ::_exit(accessible_gpus(root.path()) == std::vector{at(addresses[own].c_str())} ? 0 : 1);
    }
    int status = -1;
    ::waitpid(task, &status, 0);
    std::filesystem::remove(group, error);
    EXPECT_EQ(status, 0) << "task with GPU " << own;
  }
}

TEST_F(GpuFactsTest, AmdAndIntelGpusNeedOneUsableRenderNode) {
  const auto amd = root.pci("0000:41:00.0", kAcceleratorClass, kAmd, "amdgpu");
  EXPECT_THAT(fact("0000:41:00.0").hidden_reason, HasSubstr("no render node"));
  root.folder(amd / "drm/card1");
  root.folder(amd / "drm/renderD128");
  EXPECT_EQ(fact("0000:41:00.0").hidden_reason, "no device file: /dev/dri/renderD128 is missing");
  root.folder(amd / "drm/renderD129");
  root.write("dev/dri/renderD129", "");
  EXPECT_TRUE(fact("0000:41:00.0").visible);
  EXPECT_EQ(fact("0000:41:00.0").hidden_reason, "");

  const auto intel = root.pci("0000:51:00.0", kOtherDisplayClass, kIntel, "xe");
  EXPECT_FALSE(fact("0000:51:00.0").visible);
  root.folder(intel / "drm/renderD130");
  root.write("dev/dri/renderD130", "");
  EXPECT_TRUE(fact("0000:51:00.0").visible);

  root.pci("0000:61:00.0", kVgaClass, kAmd, "");
  EXPECT_EQ(fact("0000:61:00.0").hidden_reason, "no driver is bound to it");
}

}  // namespace
}  // namespace ddp::topology::test
