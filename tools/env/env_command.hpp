// `ddp-info env`: asks this process, another one or the ranks of the job, and prints.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/option_table.hpp"

namespace ddp::tools::env {

struct EnvOptions {
  std::vector<std::string> names;  ///< only these variables, each explained; with diff: the two files
  std::optional<int> pid;          ///< another process in place of this one
  std::string nccl;                ///< a library in place of the one that would be loaded
  std::string ranks_of;            ///< a job: print its ranks on this node for who asks all nodes
  bool all = false;
  bool json = false;
  bool torch = false;
  bool diff = false;
  bool known = false;
  bool own = false;  ///< print the rows of libddp's own variables
  bool newer = false;
  bool no_job = false;
  std::string help{};  ///< what --help prints, if it is given
};

/// Throws cli::UsageError for what is not the number of a process.
int process_number(const std::string& text);

cli::OptionTable env_table(EnvOptions& options);

/// @param arguments those after the word "env". Throws cli::UsageError.
EnvOptions parse_env_options(std::span<const std::string> arguments);

/// In a job, ranks other than 0 print nothing. Throws Error.
void run_env(const EnvOptions& options);

}  // namespace ddp::tools::env
