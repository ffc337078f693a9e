// The command line of `ddp-info topo`, after it has been checked.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <variant>

#include <ddp/placement.hpp>

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
  std::optional<std::string> svg;
  std::optional<int> explain;  ///< a rank: of the job, or of the machine
  bool json = false;
  bool no_job = false;
};

/// What --help prints.
struct HelpText {
  std::string text;
};

/// @param arguments those after the word "topo". Long options may be abbreviated, written with underscores, and as
/// "--name=value"; the last of several equal ones counts. Throws UsageError.
std::variant<TopoOptions, HelpText> parse_topo_options(std::span<const std::string> arguments);

}  // namespace ddp::tools
