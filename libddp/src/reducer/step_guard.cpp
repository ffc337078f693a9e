#include "reducer/step_guard.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/group_engine.hpp"

namespace ddp::reducer {

void end_step_everywhere(ProcessGroup& group, const CommHook* hook, const std::exception& error) {
  if (group.size() == 1) return;
  const int own = group.global_ranks()[static_cast<std::size_t>(group.rank())];
  collectives::GroupEngine::of(group).end_group(
      Error{{.code = ErrorCode::aborted,
             .attempted = hook != nullptr ? fmt::format("averaging gradients by the hook '{}'", hook->name())
                                          : "moving gradients on a device",
             .cause = fmt::format("it failed on rank {}: {}", own, error.what()),
             .ranks = {own},
             .hint = "look at that rank; then change the group, or make a new one"}});
}

}  // namespace ddp::reducer
