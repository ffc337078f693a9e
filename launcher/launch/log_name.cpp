#include "launch/log_name.hpp"

#include <stdlib.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/slurm_step.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {

bool needs_log_folder(const LogOptions& logs) {
  const auto wanted = [](const StreamSelection& selection) {
    return selection.all != Streams::none || !selection.by_local_rank.empty();
  };
  return !logs.directory && (wanted(logs.redirects) || wanted(logs.tee));
}

std::string make_log_folder(const std::string& parent) {
  std::string folder = parent + "/ddprun_logs_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw base::system_error(fmt::format("making the log folder '{}'", folder), errno, "give another with --log-dir");
  return folder;
}

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
