#include "topo/job_gather.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/message.hpp"

namespace ddp::tools {
namespace {

constexpr std::array<std::string_view, 17> kPrefixes = {"NCCL_", "RCCL_", "NVSHMEM_", "UCX_", "GLOO_", "TP_",
                                                        "FI_",   "OMP_",  "GOMP_",    "KMP_", "MKL_",  "CUDA_",
                                                        "ROCR_", "HIP_",  "GPU_",     "ZE_",  "DDP_"};

}  // namespace

Variables reported_variables(const base::Environment& environment) {
  Variables chosen;
  for (const auto& [name, value] : environment.variables()) {
    const auto begins = [&name = name](std::string_view prefix) { return name.starts_with(prefix); };
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(), begins)) chosen.emplace(name, value);
  }
  return chosen;
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
    return base::encode(report);
  } catch (const Error& error) {
    RankReport complaint;
    complaint.failure = error.what();
    complaint.rank = report.rank;
    complaint.local_rank = report.local_rank;
    complaint.host = report.host;
    return base::encode(complaint);
  }
}

RankReport report_of(KeyValueStore& store, int rank, std::size_t local_rank, Deadline deadline) {
  RankReport report = base::decode<RankReport>(store.get(rank, kReportKey, deadline));
  if (report.rank != rank || report.local_rank != static_cast<int>(local_rank)) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = fmt::format("reading the report of rank {}", rank),
                 .cause = fmt::format("it claims to be of rank {} with local rank {}, not {}", report.rank,
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
