#include "topology/placement/rank_resources.hpp"

#include <array>
#include <cstdint>
#include <utility>

#include "base/byte_stream.hpp"

namespace ddp::topology {

std::map<std::string, std::string, std::less<>> device_variables(const base::Environment& environment) {
  constexpr std::array kVariables{"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                  "ZE_AFFINITY_MASK"};
  std::map<std::string, std::string, std::less<>> devices;
  for (const char* name : kVariables) {
    if (auto value = environment.raw(name)) devices.emplace(name, std::move(*value));
  }
  return devices;
}

Bytes encode(const RankResources& resources) {
  base::ByteWriter writer;
  writer.text(resources.cpus.to_string()).integer(static_cast<std::uint8_t>(resources.devices.size()));
  for (const auto& [name, value] : resources.devices) writer.text(name).text(value);
  writer.integer(static_cast<std::uint16_t>(resources.gpus.size()));
  for (const PciAddress& gpu : resources.gpus)
    writer.integer(gpu.domain).integer(gpu.bus).integer(gpu.device).integer(gpu.function);
  return std::move(writer).bytes();
}

RankResources decode_resources(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "rank's resources");
  RankResources resources;
  resources.cpus = CpuSet::parse(reader.text());
  for (auto left = reader.integer<std::uint8_t>(); left > 0; --left) {
    std::string name = reader.text();
    resources.devices.emplace(std::move(name), reader.text());
  }
  for (auto left = reader.integer<std::uint16_t>(); left > 0; --left) {
    PciAddress gpu;
    gpu.domain = reader.integer<std::uint32_t>();
    gpu.bus = reader.integer<std::uint8_t>();
    gpu.device = reader.integer<std::uint8_t>();
    gpu.function = reader.integer<std::uint8_t>();
    resources.gpus.push_back(gpu);
  }
  reader.expect_end();
  return resources;
}

}  // namespace ddp::topology
