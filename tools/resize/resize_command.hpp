// `ddp-info resize`: a running ddprun job continues on fewer or more nodes.
#pragma once

#include <span>
#include <string>

#include "cli/option_table.hpp"

namespace ddp::tools::resize {

struct ResizeOptions {
  std::string job;
  int nodes = 0;        ///< 0: not given
  int spares = -1;      ///< -1: not given
  std::string drain{};  ///< host; empty: not given
  std::string help{};   ///< what --help prints, if it is given
};

cli::OptionTable resize_table(ResizeOptions& options);

/// @param arguments those after the word "resize". Throws cli::UsageError.
ResizeOptions parse_resize_options(std::span<const std::string> arguments);

/// Prints what follows. Throws Error, where there is no such job of this user's, or it refuses.
void run_resize(const ResizeOptions& options);

}  // namespace ddp::tools::resize
