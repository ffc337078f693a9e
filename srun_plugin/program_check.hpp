// Command lines that srun --ddp cannot run as their user means them: launchers that start ranks of their own, and
// scripts that are no programs.
#pragma once

#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "plugin_options.hpp"

namespace ddp::srun_plugin {

/// The command cannot work: srun ends with what() before there is an allocation.
class RefusedCommand : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What to write instead of a launcher's command (torchrun, accelerate launch, python -m torch.distributed.run,
/// deepspeed, mpirun), and whether the command cannot work at all.
struct LauncherAdvice {
  std::string text;
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
