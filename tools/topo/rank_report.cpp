#include "topo/rank_report.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "command/rank_message.hpp"

namespace ddp::tools {
namespace {

constexpr std::uint8_t kVersion = 2;

constexpr std::array<std::string_view, 16> kPrefixes = {"NCCL_", "RCCL_", "NVSHMEM_", "UCX_", "GLOO_", "FI_",
                                                        "OMP_",  "GOMP_", "KMP_",     "MKL_", "CUDA_", "ROCR_",
                                                        "HIP_",  "GPU_",  "ZE_",      "DDP_"};

constexpr MessageKind kMessage{.name = "rank's report", .program = "ddp-info"};

}  // namespace

Variables reported_variables(const base::Environment& environment) {
  Variables chosen;
  for (const auto& [name, value] : environment.variables()) {
    const auto begins = [&name = name](std::string_view prefix) { return name.starts_with(prefix); };
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(), begins)) chosen.emplace(name, value);
  }
  return chosen;
}

Bytes encode(const RankReport& report) {
  base::ByteWriter writer;
  writer.integer(kVersion).text(report.failure).integer(report.rank).integer(report.local_rank).text(report.host);
  writer.text(report.given.to_string()).text(report.binding.cpus.to_string()).integer(report.binding.preferred_memory);
  write_numbers(writer, report.visible_gpus);
  writer.integer(static_cast<std::uint8_t>(report.named_gpus.has_value()));
  if (report.named_gpus) write_numbers(writer, *report.named_gpus);
  writer.integer(static_cast<std::uint32_t>(report.environment.size()));
  for (const auto& [name, value] : report.environment) writer.text(name).text(value);
  writer.text(report.interface.name).text(report.interface.address).text(report.interface.reason);
  writer.integer(static_cast<std::uint8_t>(report.nccl_conf.size()));
  for (const base::NcclConf& file : report.nccl_conf) {
    writer.text(file.path).integer(static_cast<std::uint32_t>(file.settings.size()));
    for (const auto& [name, value] : file.settings) writer.text(name).text(value);
  }
  writer.integer(report.processor_thousandths).text(report.processors_group);
  Bytes bytes = std::move(writer).bytes();
  if (bytes.size() > kLargestReportBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "reporting what this rank has got",
                 .cause = fmt::format("the report has {} bytes, more than {}", bytes.size(), kLargestReportBytes),
                 .hint = "is a variable such as OMP_PLACES or NCCL_TOPO_FILE extremely long?"}};
  }
  return bytes;
}

RankReport decode_rank_report(std::span<const std::byte> bytes) {
  if (bytes.size() > kLargestReportBytes) reject_message(kMessage, fmt::format("it has {} bytes", bytes.size()));
  base::ByteReader reader{bytes, kMessage.name};
  expect_version(reader, kVersion, kMessage);
  RankReport report;
  report.failure = reader.text();
  report.rank = reader.integer<int>();
  report.local_rank = reader.integer<int>();
  report.host = reader.text();
  report.given = read_cpus(reader, kMessage);
  report.binding.cpus = read_cpus(reader, kMessage);
  report.binding.preferred_memory = reader.integer<int>();
  report.visible_gpus = read_numbers(reader);
  const auto named = reader.integer<std::uint8_t>();
  if (named > 1) reject_message(kMessage, fmt::format("it has {} where 0 or 1 must be", named));
  if (named == 1) report.named_gpus = read_numbers(reader);
  for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
    std::string name = reader.text();
    report.environment[std::move(name)] = reader.text();
  }
  report.interface.name = reader.text();
  report.interface.address = reader.text();
  report.interface.reason = reader.text();
  for (auto files = reader.integer<std::uint8_t>(); files > 0; --files) {
    base::NcclConf& file = report.nccl_conf.emplace_back();
    file.path = reader.text();
    for (auto left = reader.integer<std::uint32_t>(); left > 0; --left) {
      std::string name = reader.text();
      file.settings.emplace_back(std::move(name), reader.text());
    }
  }
  report.processor_thousandths = reader.integer<std::uint64_t>();
  report.processors_group = reader.text();
  reader.expect_end();
  return report;
}

}  // namespace ddp::tools
