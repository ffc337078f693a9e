// ddp-step store: the c10d store of one step, beside srun.
#pragma once

#include <chrono>
#include <optional>

#include "step_program/step_log.hpp"
#include "store_server/listeners.hpp"

namespace ddp::srun_plugin {

struct StoreCommand {
  std::optional<store_server::PortRange> ports;
  bool failure_ends_step = false;  ///< as srun decides it, for what is said of a failure
  bool nodes_expected = false;     ///< the step exists already, so that nodes should be heard of before its end
  std::optional<std::chrono::milliseconds>
      hang_report_after;  ///< for how long no rank must get on; nothing: never told
  StepLogOptions log;
};

/// Reads the store's key (store_server::StoreKey), one line, from standard input, writes "ddp-step 1 port NUMBER" or
/// "error TEXT" to standard output, and serves until standard input ends, as it does when srun ends in any way. What
/// users should know goes to standard error. At the end it writes "failure STATUS" to standard output where a rank has
/// failed: how a shell would give the end of the first. Returns the exit status.
int serve_store(const StoreCommand& command);

}  // namespace ddp::srun_plugin
