#include "launch/log_name.hpp"

#include "base/slurm_step.hpp"

namespace ddp::launcher {

std::string log_name(const LaunchOptions& options, const base::Environment& environment) {
  const std::string& run_id = options.rendezvous.run_id;
  const bool given = !options.standalone && run_id != RendezvousOptions{}.run_id;
  const auto job = environment.raw("SLURM_JOB_ID");
  if (given || !job || job->empty()) return run_id;
  // Nothing but the two, as other variables may be wrong without a consequence here.
  const auto step = base::SlurmStep::read(
      base::Environment{{{"SLURM_JOB_ID", *job}, {"SLURM_STEP_ID", environment.raw("SLURM_STEP_ID").value_or("")}}});
  return step.kind == base::SlurmStep::Kind::user ? step.name : *job;
}

}  // namespace ddp::launcher
