#include "step_program/node_report.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::srun_plugin {
namespace {

// StepStore takes 64 KiB.
constexpr std::size_t kMostRanks = 1024;

}  // namespace

std::string report_key(const std::string& node) { return fmt::format("ddp-step/report/{}", node); }

Bytes encode(const NodeReport& report) {
  const auto count = static_cast<std::uint32_t>(std::min(report.ranks.size(), kMostRanks));
  base::ByteWriter writer;
  writer.integer(report.number).integer(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const diagnostics::StepProgress& rank = report.ranks[i];
    writer.integer(static_cast<std::int32_t>(rank.rank)).integer(rank.steps).integer(rank.step_ns);
    writer.integer(rank.communication_ns).integer(rank.hidden_ns);
    writer.integer(static_cast<std::int32_t>(rank.straggler_rank)).integer(rank.straggler_delay_ns);
  }
  return std::move(writer).bytes();
}

NodeReport decode_report(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "a node's report on its ranks' steps");
  NodeReport report;
  report.number = reader.integer<std::uint32_t>();
  const auto count = reader.integer<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    diagnostics::StepProgress rank;
    rank.rank = reader.integer<std::int32_t>();
    rank.steps = reader.integer<std::int64_t>();
    rank.step_ns = reader.integer<std::int64_t>();
    rank.communication_ns = reader.integer<std::int64_t>();
    rank.hidden_ns = reader.integer<std::int64_t>();
    rank.straggler_rank = reader.integer<std::int32_t>();
    rank.straggler_delay_ns = reader.integer<std::int64_t>();
    report.ranks.push_back(rank);
  }
  reader.expect_end();
  return report;
}

}  // namespace ddp::srun_plugin
