// Starts one worker process: own session, default signals, no inherited descriptors, killed when ddprun dies.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/deadline.hpp>

#include "base/process.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {

struct SpawnRequest {
  int rank;                              ///< for messages
  std::string path;                      ///< file to execute
  std::vector<std::string> arguments;    ///< argv, the program's name first
  std::vector<std::string> environment;  ///< "NAME=value"
  rlimit descriptor_limit;               ///< RLIMIT_NOFILE of the worker
  bool ignore_hangup;                    ///< SIGHUP stays ignored, as nohup(1) asked
  std::optional<Binding> binding{};      ///< nothing: ddprun's own
  int standard_input = 0;                ///< descriptors that become the worker's; not owned. -1: /dev/null
  int standard_output = 1;
  int standard_error = 2;
};

/// A started process. Its pid stays valid until it has been waited for.
struct SpawnedProcess {
  pid_t pid;
  base::UniqueFd pidfd;  ///< readable once the process has ended
};

/// A process that may not execute its program yet. Destruction kills it. Move-only.
class StartingWorker {
 public:
  StartingWorker(SpawnRequest request, base::ChildProcess process, base::UniqueFd report)
      : request_(std::move(request)), process_(std::move(process)), report_(std::move(report)) {}

  /// Returns once the program is executed. Throws ExitError(kExitNotExecutable) if it cannot be, Error(timeout), and
  /// Error(system) for anything else.
  SpawnedProcess confirm(Deadline deadline);

 private:
  SpawnRequest request_;
  base::ChildProcess process_;
  base::UniqueFd report_;  ///< the child's failures; empty: it executes its program already
};

/// Forks a process that executes the program. The process
/// - leads a session and process group of its own, so that its children can be signalled with it (from confirm() on);
/// - gets SIGKILL when the calling thread ends (PR_SET_PDEATHSIG): call from the main thread only;
/// - has default signal dispositions and an empty mask;
/// - is bound to the cores and memory of the request before the program starts; standard error gets a warning if the
///   kernel narrowed the mask;
/// - inherits only the standard streams of the request;
/// - may be traced by the calling process and those that it starts, where Yama would else refuse it (prctl(2)).
/// Throws Error(system) when fork(2) fails.
StartingWorker start_worker(SpawnRequest request);

// Lets ddp-info run in a rank before its program: the same process then becomes the program.

/// Beside ddprun. Throws ExitError(kExitNotFound) where it is not there.
std::string find_ddp_info();

/// Makes the process dump its environment to @p destination (a file, or "stderr") with those of the other ranks, which
/// meet in the attempt's store. @param ddp_info of find_ddp_info()
void dump_environment_first(SpawnRequest& request, const std::string& ddp_info, const std::string& destination);

}  // namespace ddp::launcher
