// What fails in the middle of a step on one rank must not leave the others waiting for its part.
#pragma once

#include <exception>

#include <ddp/comm_hook.hpp>

namespace ddp::reducer {

/// Ends the group, on all its ranks. @param hook that has failed; null: work on a device.
void end_step_everywhere(ProcessGroup& group, const CommHook* hook, const std::exception& error);

/// Calls a hook, or a device. What it throws ends the group, since the other ranks wait for this one's part of the
/// exchange.
template <class Call>
auto guarded(ProcessGroup& group, const CommHook* hook, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    end_step_everywhere(group, hook, error);
    throw;
  }
}

}  // namespace ddp::reducer
