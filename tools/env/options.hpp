// The command line of `ddp-info env`.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

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
  bool help = false;
};

/// Throws UsageError for what is not the number of a process.
int process_number(const std::string& text);

/// What --help prints.
extern const char* const kEnvHelp;

/// @param arguments those after the word "env". Throws UsageError.
EnvOptions parse_env_options(std::span<const std::string> arguments);

}  // namespace ddp::tools::env
