// What the user asked ddprun to do: the command line after it has been checked.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <ddp/placement.hpp>

#include "topology/settings.hpp"

namespace ddp::launcher {

/// The most ranks that one node may get. Four times the hardware threads of the largest nodes in use (about 1024), and
/// well inside what PMIx can number on one node (local ranks are 16-bit).
inline constexpr int kMaxRanksPerNode = 4096;

struct LaunchOptions {
  int nproc_per_node = 1;
  /// After the first failure, the time that the other ranks have to end by themselves before they get SIGTERM.
  std::chrono::milliseconds failure_grace{2'000};
  /// The time from SIGTERM (or a forwarded signal) to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30'000};
  BindPolicy bind = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  bool verbose = false;
  std::vector<std::string> command;  ///< program and its arguments; never empty
};

}  // namespace ddp::launcher
