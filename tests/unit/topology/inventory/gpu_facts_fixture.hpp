// A machine whose GPUs are files below a folder, and the driver's library that tests/support/fake_nvml.c makes.
#pragma once

#include "support/checkout.hpp"
#include "topology/inventory/gpu_facts.hpp"
#include "topology/inventory/nvml.hpp"
#include "unit/topology/fake_root.hpp"

namespace ddp::topology::test {

inline constexpr auto kVgaClass = "0x030000";
inline constexpr auto kGpuClass = "0x030200";
inline constexpr auto kOtherDisplayClass = "0x038000";
inline constexpr auto kAcceleratorClass = "0x120000";
inline constexpr auto kNvidia = "0x10de";
inline constexpr auto kAmd = "0x1002";
inline constexpr auto kIntel = "0x8086";

inline std::string fake_nvml() { return ddp::test::built_file("lib/libfake_nvml.so"); }
inline std::string old_fake_nvml() { return ddp::test::built_file("lib/libfake_nvml_old.so"); }

inline PciAddress at(const char* text) { return PciAddress::parse(text).value(); }

struct GpuFactsTest : testing::Test {
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

}  // namespace ddp::topology::test
