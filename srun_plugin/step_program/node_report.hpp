// What a node's witness leaves in the step's store for the event log beside srun.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "diagnostics/metrics/job_progress.hpp"

namespace ddp::srun_plugin {

/// The first: all tasks of the node have begun.
struct NodeReport {
  std::uint32_t number = 0;  ///< from 1
  std::vector<diagnostics::StepProgress> ranks{};
  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

/// Of the latest.
std::string report_key(const std::string& node);

/// Leaves out ranks beyond what a value of the store may have.
Bytes encode(const NodeReport& report);
/// Throws Error(protocol).
NodeReport decode_report(std::span<const std::byte> bytes);

}  // namespace ddp::srun_plugin
