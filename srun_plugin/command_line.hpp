// Finds --ddp on srun's command line before srun itself reads it: the MPI type must be chosen by then, since a plugin
// can choose it only through the environment.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddp::srun_plugin {

struct CommandLine {
  bool ddp = false;                                     ///< --ddp stands among srun's own options
  std::string ddp_detail = {};                          ///< those of --ddp-* that do, as "--ddp-bind, --ddp-gpus"
  bool interactive = false;                             ///< salloc's own, for its shell on a node
  bool cpus_per_task = false;                           ///< so does -c or --cpus-per-task
  bool components = false;                              ///< several components: ":", or --het-group with more than one
  bool no_kill = false;                                 ///< -k or --no-kill
  std::optional<bool> kill_on_bad_exit = std::nullopt;  ///< -K or --kill-on-bad-exit, and whether its value is not 0
  bool other_files = false;                             ///< -D, --chdir, --container-*: tasks see another folder
  std::string program = {};                             ///< the user's, of the first component
  std::vector<std::string> command = {};                ///< the same with its arguments
};

/// @param arguments of srun with its name first. What belongs to the user's program is not looked at: after "--", or
/// from the first word that is neither an option nor the value of one. An option that this function does not know (of
/// another plugin) is taken to have no value of its own; should it have one, --ddp behind it is not found.
CommandLine read_command_line(std::span<const std::string> arguments);

/// /proc/self/cmdline; empty if it cannot be read.
std::span<const std::string> own_arguments();

}  // namespace ddp::srun_plugin
