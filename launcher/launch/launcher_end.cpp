#include "launch/launcher_end.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "base/log.hpp"

namespace ddp::launcher {
namespace {

// For srun to notice the end of its tasks, and ssh that of its agent.
constexpr std::chrono::seconds kPatience{15};
// The same at least, where the end of the job is limited; then for SIGTERM to take effect.
constexpr std::chrono::milliseconds kLeastPatience{300};
constexpr std::chrono::milliseconds kEndLimit{700};
// For srun to notice the end of the other tasks, where a node is lost.
constexpr std::chrono::seconds kLostNodePatience{1};
// For SIGTERM, after a job whose end is not limited.
constexpr std::chrono::seconds kTermPatience{10};
constexpr std::chrono::milliseconds kReaderCheck{200};

/// Launchers wait for it until Slurm, or TCP, gives it up.
bool a_node_is_lost(const Coordinator& coordinator) {
  const JobAttempt* attempt = coordinator.last_attempt();
  return attempt != nullptr && std::any_of(attempt->nodes().begin(), attempt->nodes().end(),
                                           [](const AttemptNode& node) { return node.state == NodeState::lost; });
}

}  // namespace

bool readers_keep_up() {
  std::array<pollfd, 2> streams{pollfd{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0},
                                pollfd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0}};
  ::poll(streams.data(), streams.size(), 0);
  return std::all_of(streams.begin(), streams.end(), [](const pollfd& stream) { return stream.revents != 0; });
}

void end_launchers(stream::EventLoop& loop, Coordinator& coordinator, const RunningLaunchers& launchers) {
  const auto begin = Deadline::Clock::now();
  while (!launchers.ended()) {
    const bool kept_up = readers_keep_up();
    Deadline limit{begin + kPatience};
    if (!kept_up) limit = Deadline{limit.when() + coordinator.drain_time()};
    Deadline last = Deadline::after(kTermPatience);
    const std::optional<Deadline> end = coordinator.end_by();
    if (end && kept_up) {
      const Deadline least{begin + kLeastPatience};
      const Deadline latest{end->when() - kEndLimit};
      limit = latest < least ? least : latest;
      if (a_node_is_lost(coordinator)) limit = earlier(limit, Deadline{begin + kLostNodePatience});
      last = Deadline::after(kEndLimit);
    }
    if (limit.expired()) {
      if (!end) base::write_stderr_line(fmt::format("ddprun: {} did not exit in time; ending it", launchers.name));
      return launchers.end(last);
    }
    loop.run_once(earlier(limit, Deadline::after(kReaderCheck)));
  }
}

}  // namespace ddp::launcher
