#include "cuda/device.hpp"

#include <array>

#include <fmt/format.h>

#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::cuda {
namespace {

std::string uuid_text(const CUuuid& uuid, bool is_part) {
  std::string text = is_part ? "MIG-" : "GPU-";
  int position = 0;
  for (const char byte : uuid.bytes) {
    if (position == 4 || position == 6 || position == 8 || position == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    ++position;
  }
  return text;
}

}  // namespace

int device_count() {
  int count = 0;
  check(driver().device_get_count(&count), "counting CUDA devices");
  return count;
}

DeviceFacts device_facts(int device) {
  constexpr int kTextBytes = 256;
  const std::string attempted = fmt::format("describing CUDA device {}", device);
  CUdevice handle{};
  check(driver().device_get(&handle, device), attempted);
  std::array<char, kTextBytes> text{};
  DeviceFacts facts;
  check(driver().device_get_name(text.data(), kTextBytes, handle), attempted);
  facts.name = text.data();
  check(driver().device_get_pci_bus_id(text.data(), kTextBytes, handle), attempted);
  facts.pci_bus_id = text.data();
  CUuuid uuid{};
  check(driver().device_get_uuid(&uuid, handle), attempted);
  // A part of a GPU has "MIG" in its name, as nvidia-smi -L shows it; the driver API has no other sign of it.
  facts.uuid = uuid_text(uuid, facts.name.find(" MIG ") != std::string::npos);
  check(driver().device_get_attribute(&facts.compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle),
        attempted);
  check(driver().device_get_attribute(&facts.compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle),
        attempted);
  return facts;
}

}  // namespace ddp::cuda
