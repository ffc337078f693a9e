// Finds --ddp on srun's command line before srun itself reads it: the MPI type must be chosen by then, since a plugin
// can choose it only through the environment.
#pragma once

#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "srun_side/plugin_options.hpp"

namespace ddp::srun_plugin {

struct CommandLine {
  bool ddp = false;                                     ///< --ddp stands among srun's own options
  std::string ddp_detail = {};                          ///< those of --ddp-* that do, as "--ddp-bind, --ddp-gpus"
  bool interactive = false;                             ///< salloc's own, for its shell on a node
  bool cpus_per_task = false;                           ///< so does -c or --cpus-per-task
  bool components = false;                              ///< several components: ":", or --het-group with more than one
  bool job_id = false;                                  ///< --jobid: the step is of a job that exists
  bool no_kill = false;                                 ///< -k or --no-kill
  std::optional<bool> kill_on_bad_exit = std::nullopt;  ///< -K or --kill-on-bad-exit, and whether its value is not 0
  bool other_files = false;                             ///< -D, --chdir, --container-*: tasks see another folder
  std::string mpi = {};                                 ///< --mpi; empty: not given
  std::string program = {};                             ///< the user's, of the first component
  std::vector<std::string> command = {};                ///< the same with its arguments
};

/// @param arguments of srun with its name first. What belongs to the user's program is not looked at: after "--", or
/// from the first word that is neither an option nor the value of one. An option that this function does not know (of
/// another plugin) is taken to have no value of its own; should it have one, --ddp behind it is not found.
CommandLine read_command_line(std::span<const std::string> arguments);

/// /proc/self/cmdline; empty if it cannot be read.
std::span<const std::string> own_arguments();

// Command lines that srun --ddp cannot run as their user means them: launchers that start ranks of their own, and
// scripts that are no programs.

/// The command cannot work: srun ends with what() before there is an allocation.
class RefusedCommand : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What to write instead of a launcher's command (torchrun, accelerate launch, python -m torch.distributed.run,
/// deepspeed, mpirun), and whether the command cannot work at all.
struct LauncherAdvice {
  std::string text{};
  bool hopeless = false;  ///< a torchrun for several nodes that names no place where they meet: each waits for itself
};

/// @param command the user's program with its arguments. @param lookup of srun's environment. Nothing: it is no
/// launcher.
std::optional<LauncherAdvice> advise_on_launcher(std::span<const std::string> command, Lookup lookup);

/// What to write instead of a Python or shell script that the kernel would not execute, as srun would find it from
/// @p folder and the path list @p path. Nothing where it would, and for files that this host cannot see.
std::optional<std::string> advise_on_script(std::span<const std::string> command, const std::string& folder,
                                            const std::string& path);

}  // namespace ddp::srun_plugin
