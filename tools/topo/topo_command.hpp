// `ddp-info topo`: asks the machine or the job, and prints.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <ddp/placement.hpp>

#include "cli/option_table.hpp"
#include "topology/placement/option_words.hpp"

namespace ddp::tools {

/// The most ranks that one node may get, as in ddprun.
inline constexpr int kMaxRanks = 4096;

struct TopoOptions {
  std::optional<int> nproc;                     ///< ranks on this node; nothing: decided by the machine or the job
  std::optional<BindPolicy> bind;               ///< nothing: DDP_BIND, else numa
  std::optional<topology::GpuVisibility> gpus;  ///< nothing: DDP_GPUS, else all
  std::optional<std::string> xml;               ///< another machine's file
  std::optional<std::string> export_file;       ///< where this machine is written to; "-": standard output
  std::optional<int> explain;                   ///< a rank: of the job, or of the machine
  bool json = false;
  bool no_job = false;
  std::string help{};  ///< what --help prints, if it is given
};

cli::OptionTable topo_table(TopoOptions& options);

/// @param arguments those after the word "topo". Throws cli::UsageError.
TopoOptions parse_topo_options(std::span<const std::string> arguments);

/// In a job, ranks other than 0 print nothing. Throws Error, and cli::UsageError for options that do not fit the
/// machine or the job.
void run_topo(const TopoOptions& options);

}  // namespace ddp::tools
