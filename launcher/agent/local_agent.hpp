// Runs one job on this host from start to end: PMIx server, workers, supervision, report.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "agent/signal_inbox.hpp"
#include "agent/supervisor.hpp"
#include "base/env_table.hpp"
#include "options/launch_options.hpp"
#include "pmix_server/job_namespace.hpp"
#include "pmix_server/pmix_server.hpp"
#include "workers/worker_group.hpp"

namespace ddp::launcher {

/// Must be used from the process's main thread, once: workers die with the thread that started them.
class LocalAgent {
 public:
  /// Neither is changed; @p environment is what workers inherit.
  LocalAgent(LaunchOptions options, base::Environment environment);

  /// Runs the job and writes the report to standard error. Returns ddprun's exit status. Throws Error when the job
  /// could not be started; no worker is left then.
  int run();

 private:
  WorkerGroup start_workers(const std::string& program, const JobNamespace& job, const SignalInbox& signals) const;
  JobOutcome supervise(WorkerGroup& workers, SignalInbox& signals, AbortInbox& aborts) const;
  /// Returns how many processes ranks had left behind.
  int end_what_is_left(std::span<const pid_t> workers) const;

  template <class... Args>
  void tell(fmt::format_string<Args...> format, Args&&... args) const;

  LaunchOptions options_;
  base::Environment environment_;
  std::string host_;
};

}  // namespace ddp::launcher
