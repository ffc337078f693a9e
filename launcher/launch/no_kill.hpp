// Whether Slurm ends a job with its first lost node, as it does without --no-kill: then ddprun cannot continue on the
// others. Slurm does not say so to a running job; what the user wrote does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/env_table.hpp"
#include "launch/heard_program.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// @param words of the salloc above this process @return a warning with what to add; empty: none is due
std::string warning_of_salloc(const std::vector<std::string>& words);
/// @param lines of `scontrol --oneliner show job` and `scontrol write batch_script`; none: Slurm did not answer
std::string warning_of_sbatch(const std::vector<std::string>& lines);

/// Warns once, after its construction, where the allocation that this process leads lacks --no-kill, as far as that can
/// be known: a salloc that Slurm runs elsewhere cannot be asked. Does not hold up the job.
class NoKillCheck {
 public:
  /// Both must outlive the object, whose destruction kills scontrol.
  NoKillCheck(stream::EventLoop& loop, const base::Environment& environment);
  /// After each turn of the loop.
  void time_passed();

 private:
  /// scontrol with these words. False: it could not be started.
  bool ask(std::vector<std::string> words);

  stream::EventLoop& loop_;
  const base::Environment& environment_;
  std::string job_;
  bool script_asked_ = false;
  HeardProgram scontrol_;  ///< first about the job, then for its script
  std::vector<std::string> lines_;
};

}  // namespace ddp::launcher
