#include "topology/inventory/gpu_facts.hpp"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "topology/inventory/gpu_devices.hpp"
#include "topology/inventory/nvml.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::topology {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kVgaClass = "0x030000";
constexpr auto kGpuClass = "0x030200";
constexpr auto kOtherDisplayClass = "0x038000";
constexpr auto kAcceleratorClass = "0x120000";
constexpr auto kNvidia = "0x10de";
constexpr auto kAmd = "0x1002";
constexpr auto kIntel = "0x8086";

PciAddress at(const char* text) { return PciAddress::parse(text).value(); }

class GpuFactsTest : public testing::Test {
 protected:
  ~GpuFactsTest() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    const std::string variable = "FAKE_NVML_" + name;
    ::setenv(variable.c_str(), value.c_str(), 1);
    set_.push_back(variable);
  }

  void nvidia_gpu(const std::string& address, const std::string& driver = "nvidia") const {
    root.pci(address, kGpuClass, kNvidia, driver);
  }
  void nvidia_information(const std::string& address, int minor) const {
    root.write(
        "proc/driver/nvidia/gpus/" + address + "/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 230\nGPU UUID: \t GPU-3a1b\nDevice Minor: \t " + std::to_string(minor));
  }

  GpuFacts all_facts(const Nvml* nvml) const {
    return collect_gpu_facts(root.path(), nvml == nullptr ? std::nullopt : std::optional(nvml->gpus()));
  }
  GpuFact fact(const char* address, const Nvml* nvml = nullptr) const {
    const auto facts = all_facts(nvml);
    for (const GpuFact& gpu : facts.gpus) {
      if (gpu.pci == at(address)) return gpu;
    }
    ADD_FAILURE() << "no fact about " << address;
    return {};
  }

  FakeRoot root;

 private:
  std::vector<std::string> set_;
};

double bandwidth(const GpuFacts& facts, const char* a, const char* b) {
  double sum = 0;
  for (const GpuLinkFact& link : facts.links) {
    if (link.a == at(a) && link.b == at(b)) sum += link.mb_per_s;
  }
  return sum;
}

TEST_F(GpuFactsTest, NvmlTellsNameUuidAndNumber) {
  set("COUNT", "2");
  nvidia_gpu("0000:20:00.0");
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_LIBRARY};
  const auto gpu = fact("0000:10:00.0", &nvml);
  EXPECT_FALSE(gpu.visible);
  EXPECT_THAT(gpu.hidden_reason, HasSubstr("MIG"));
}

TEST_F(GpuFactsTest, SwitchedLinksConnectAllGpusAtTheSmallerSum) {
  set("COUNT", "4");
  set("SWITCH_LINKS", "18");
  set("LINK_VERSION", "6");
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_LIBRARY};
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
    const Nvml nvml{FAKE_NVML_LIBRARY};
    EXPECT_DOUBLE_EQ(bandwidth(all_facts(&nvml), "0000:10:00.0", "0000:20:00.0"), expected)
        << "nvmlNvlinkVersion_t " << version;
  }
  set("CAPABILITY", "9");
  const Nvml nvml{FAKE_NVML_LIBRARY};
  EXPECT_DOUBLE_EQ(bandwidth(all_facts(&nvml), "0000:10:00.0", "0000:20:00.0"), 25000)
      << "no GPU of Hopper's has NVLink 5";
}

TEST_F(GpuFactsTest, OldLibraryTellsSwitchesByTheirPciClass) {
  set("COUNT", "2");
  set("SWITCH_LINKS", "6");
  set("LINK_VERSION", "2");
  set("MIG", "2");
  const Nvml nvml{FAKE_NVML_OLD_LIBRARY};
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
  const Nvml nvml{FAKE_NVML_OLD_LIBRARY};
  const auto facts = all_facts(&nvml);
  EXPECT_DOUBLE_EQ(bandwidth(facts, "0000:20:00.0", "0000:10:00.0"), 2 * 20000);
}

TEST_F(GpuFactsTest, NvmlThatCannotBeOpenedSaysWhy) {
  const auto problem_of = [](const std::string& library) -> std::optional<Error> {
    try {
      const Nvml nvml{library};
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  };
  const auto missing = problem_of("/nonexistent/libnvidia-ml.so.1");
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->code(), ErrorCode::unavailable);
  EXPECT_THAT(missing->cause(), HasSubstr("/nonexistent/libnvidia-ml.so.1"));

  const auto foreign = problem_of("libm.so.6");
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->code(), ErrorCode::unavailable);
  EXPECT_THAT(foreign->cause(), HasSubstr("nvmlShutdown"));

  set("INIT", "9");
  for (const char* library : {FAKE_NVML_LIBRARY, FAKE_NVML_OLD_LIBRARY}) {
    const auto no_driver = problem_of(library);
    ASSERT_TRUE(no_driver);
    EXPECT_EQ(no_driver->code(), ErrorCode::unavailable);
    EXPECT_EQ(no_driver->native(), "Driver Not Loaded (9)");
  }
}

TEST_F(GpuFactsTest, LibraryIsStoppedOnceAndNotBeforeItsOwnerGoes) {
  const auto log = root.path() / "log";
  set("LOG", log.string());
  set("COUNT", "1");
  const auto lines = [&] {
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return text.str();
  };
  {
    Nvml first{FAKE_NVML_LIBRARY};
    const Nvml second = std::move(first);
    EXPECT_EQ(lines(), "start\n");
    EXPECT_EQ(second.gpus().size(), 1U);
  }
  EXPECT_EQ(lines(), "start\nstop\n");
}

TEST_F(GpuFactsTest, ADriverThatHangsIsNotWaitedFor) {
  set("COUNT", "2");
  ASSERT_EQ(ask_nvml(Deadline::after(std::chrono::seconds(30)), FAKE_NVML_LIBRARY).value().size(), 2U);
  EXPECT_FALSE(ask_nvml(Deadline::after(std::chrono::seconds(30)), "/nonexistent/libnvidia-ml.so.1"));
  set("HANG", "1");
  const auto begin = Deadline::Clock::now();
  EXPECT_FALSE(ask_nvml(Deadline::after(std::chrono::milliseconds(500)), FAKE_NVML_LIBRARY));
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
}

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

TEST_F(GpuFactsTest, UuidThatTheDriverDoesNotKnowYetIsLeftOut) {
  nvidia_gpu("0000:10:00.0");
  root.write("proc/driver/nvidia/gpus/0000:10:00.0/information",
             "GPU UUID: \t GPU-\?\?\?\?\?\?\?\?\nDevice Minor: \t 0");
  EXPECT_EQ(fact("0000:10:00.0").uuid, "");
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
  WithoutRootsWay(const WithoutRootsWay&) = delete;
  WithoutRootsWay& operator=(const WithoutRootsWay&) = delete;
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
    const Nvml nvml{FAKE_NVML_LIBRARY};
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
  EXPECT_EQ(fact("0000:41:00.0").hidden_reason, "no device file: /dev/dri/renderD128 is not there");
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
}  // namespace ddp::topology
