#include "step_program/end_reporter.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <utility>
#include <variant>

#include "base/unique_fd.hpp"
#include "end_channel.hpp"
#include "network_notes.hpp"
#include "step_program/node_report.hpp"

namespace ddp::srun_plugin {

EndReporter::EndReporter(const std::string& address, std::uint16_t port, ReportingNode node)
    : node_(std::move(node)), store_(address, port) {
  store_.set(presence_key(node_.name), Bytes{std::byte{1}});
  store_.set_first(kStepKey, encode(node_.step));
}

void EndReporter::run(int channel, NodeWatch* watch, bool refused) {
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  base::UniqueFd terminated{::signalfd(-1, &termination, SFD_CLOEXEC)};
  for (;;) {
    pollfd entries[] = {{.fd = channel, .events = POLLIN, .revents = 0},
                        {.fd = store_.fd(), .events = POLLIN, .revents = 0},
                        {.fd = terminated.get(), .events = POLLIN, .revents = 0},
                        {.fd = watch != nullptr ? watch->fd() : -1, .events = POLLIN, .revents = 0}};
    const bool due = watch != nullptr && watch->due();
    if (::poll(entries, 4, due ? watch->due()->poll_timeout_ms() : -1) < 0 && errno != EINTR) return;
    if (entries[2].revents != 0) {
      end_step();
      terminated.reset();
    }
    if (entries[0].revents != 0) {
      bool ended = false;
      if (take(channel, watch, ended) && refused) end_step();
      if (ended) return;
    } else if (entries[1].revents != 0) {
      return;  // it says nothing unasked: the store has ended
    }
    if (entries[3].revents != 0) watch->serve();
    if (due && watch->due()->expired()) store_.set(report_key(node_.name), encode(watch->report()));
  }
}

/// If the nodes have not agreed yet, their tasks have not started, and would not notice Slurm's signals.
void EndReporter::end_step() {
  store_.set_first(kDecisionKey, encode(NetworkDecision{.subnet = {}, .reason = "the step is being ended", .by = {}}));
}

bool EndReporter::take(int channel, NodeWatch* watch, bool& ended) {
  const TaskNews news = take_news(channel, ended);
  if (const auto* end = std::get_if<TaskEnd>(&news)) {
    const auto rank = static_cast<std::uint32_t>(node_.first_rank + end->task);
    report(rank, end->status, end->when_ms);
    confirm_end(channel);
    if (watch != nullptr) watch->ended(static_cast<int>(rank), end->status);
    return true;
  }
  if (const auto* start = std::get_if<TaskStart>(&news); start != nullptr && watch != nullptr) {
    watch->started(static_cast<int>(start->rank), start->pid);
  }
  return false;
}

void EndReporter::report(std::uint32_t rank, std::int32_t status, std::int64_t when_ms) {
  const RankEnd end{.rank = rank, .status = status, .when_ms = when_ms, .node = node_.name};
  // Both are answered, so that it is known to have arrived.
  store_.set_first(status == 0 ? end_key(end.rank) : kFailureKey, encode(end));
}

}  // namespace ddp::srun_plugin
