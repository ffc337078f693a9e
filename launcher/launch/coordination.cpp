#include "launch/coordination.hpp"

#include <unistd.h>

#include <ddp/version.hpp>

#include "launch/log_name.hpp"

namespace ddp::launcher {
namespace {

// For debuggers to read the symbols of all ranks of a node (gdb: seconds with libtorch's).
constexpr std::chrono::seconds kStackLimit{25};

}  // namespace

CoordinatorOptions coordinator_options(const LaunchOptions& options, const RoleDecision& role,
                                       const base::Environment& environment) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  const bool endpoint = role.role == LaunchRole::endpoint;
  const bool frontend = role.role == LaunchRole::frontend;
  const bool fixed = endpoint && rendezvous.backend != RendezvousBackend::c10d;
  return {.membership = {.min_nodes = role.nodes.min,
                         .max_nodes = role.nodes.max,
                         .run_id = rendezvous.run_id,
                         .version = DDP_VERSION_STRING,
                         .join_timeout = fixed ? rendezvous.static_timeout : rendezvous.join_timeout,
                         .last_call = rendezvous.last_call_timeout,
                         .replaceable = endpoint},
          .max_restarts = options.max_restarts,
          .failure_grace = options.failure_grace,
          .shutdown_timeout = options.shutdown_timeout,
          .timeout = options.timeout,
          .stack_limit = kStackLimit,
          .hang_report_after = options.hang_report_after,
          .ending_signals = options.ending_signals,
          .forwarded_signals = options.forwarded_signals,
          .torchrun_exit_codes = options.torchrun_exit_codes,
          .terminal_out = frontend && ::isatty(STDOUT_FILENO) == 1,
          .terminal_err = frontend && ::isatty(STDERR_FILENO) == 1,
          .job_console = !endpoint && role.nodes.max > 1,
          .log_name = log_name(options, environment)};
}

}  // namespace ddp::launcher
