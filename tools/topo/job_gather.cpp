#include "topo/job_gather.hpp"

#include <algorithm>
#include <array>
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

namespace {

// Keys that begin with "ddp." are libddp's own.
constexpr std::string_view kReportKey = "ddp-info.rank";
constexpr std::string_view kMachineKey = "ddp-info.machine";
constexpr std::string_view kXmlKey = "ddp-info.xml";

/// Node number of the rank if it is the first one of its node.
std::optional<std::size_t> led_node(const JobLayout& layout) {
  for (std::size_t node = 0; node < layout.node_ranks.size(); ++node) {
    if (layout.node_ranks[node].front() == layout.rank) return node;
  }
  return std::nullopt;
}

std::string machine_of(KeyValueStore& store, const JobLayout& layout, std::size_t node, Deadline deadline) {
  return base::to_text(store.get(layout.node_ranks[node].front(), kMachineKey, deadline));
}

/// A report that cannot be sent becomes one that says so: the other ranks must not wait for it.
Bytes encode_or_complain(const RankReport& report) {
  try {
    return encode(report);
  } catch (const Error& error) {
    RankReport complaint;
    complaint.failure = error.what();
    complaint.rank = report.rank;
    complaint.local_rank = report.local_rank;
    complaint.host = report.host;
    return encode(complaint);
  }
}

RankReport report_of(KeyValueStore& store, int rank, std::size_t local_rank, Deadline deadline) {
  RankReport report = decode_rank_report(store.get(rank, kReportKey, deadline));
  if (report.rank != rank || report.local_rank != static_cast<int>(local_rank)) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the report of rank {}", rank),
                 .cause = fmt::format("it says that it is of rank {} with local rank {}, not {}", report.rank,
                                      report.local_rank, local_rank),
                 .ranks = {rank}}};
  }
  return report;
}

}  // namespace

std::optional<GatheredJob> gather_job(KeyValueStore& store, const JobLayout& layout, const OwnFacts& own,
                                      Deadline deadline) {
  const auto node = led_node(layout);
  const bool too_large = own.xml.size() > kLargestXmlBytes;
  RankReport report = own.report;
  if (too_large && report.failure.empty()) {
    report.failure = fmt::format("the XML of its machine has {} bytes, more than {}", own.xml.size(), kLargestXmlBytes);
  }
  const std::string machine = report.failure.empty() ? own.machine : std::string{};
  store.put(kReportKey, encode_or_complain(report));
  if (node) store.put(kMachineKey, base::to_bytes(machine));
  store.fence(deadline);

  if (node && !machine.empty()) {
    bool known = false;
    for (std::size_t earlier = 0; earlier < *node && !known; ++earlier) {
      known = machine_of(store, layout, earlier, deadline) == machine;
    }
    if (!known) store.put(kXmlKey, base::to_bytes(own.xml));
  }
  store.fence(deadline);
  if (layout.rank != 0) return std::nullopt;

  GatheredJob job;
  for (std::size_t number = 0; number < layout.node_ranks.size(); ++number) {
    const auto& ranks = layout.node_ranks[number];
    GatheredNode gathered{.machine = machine_of(store, layout, number, deadline)};
    for (std::size_t i = 0; i < ranks.size(); ++i) gathered.ranks.push_back(report_of(store, ranks[i], i, deadline));
    if (!gathered.machine.empty() && !job.xml.contains(gathered.machine)) {
      job.xml.emplace(gathered.machine, base::to_text(store.get(ranks.front(), kXmlKey, deadline)));
    }
    job.nodes.push_back(std::move(gathered));
  }
  return job;
}

}  // namespace ddp::tools
