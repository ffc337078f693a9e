#include "step_program/end_reporter.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

#include "base/unique_fd.hpp"
#include "step_program/node_report.hpp"
#include "step_program/ranks_store.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/node_channels.hpp"

namespace ddp::srun_plugin {

EndReporter::EndReporter(const std::string& address, std::uint16_t port, ReportingNode node)
    : node_(std::move(node)), store_(address, port) {
  store_.set(presence_key(node_.name), Bytes{std::byte{1}});
  store_.set_first(kStepKey, encode(node_.step));
}

template <class Function>
void EndReporter::hanging(Function&& function) {
  if (hang_ == nullptr) return;
  try {
    function(*hang_);
  } catch (const std::exception&) {  // srun's side is gone, to which all words go; ranks' ends matter more
    hang_ = nullptr;
  }
}

void EndReporter::run(int channel, NodeWatch* watch, HangWatch* hang, bool refused) {
  hang_ = hang;
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  base::UniqueFd terminated{::signalfd(-1, &termination, SFD_CLOEXEC)};
  for (;;) {
    pollfd entries[] = {{.fd = channel, .events = POLLIN, .revents = 0},
                        {.fd = store_.fd(), .events = POLLIN, .revents = 0},
                        {.fd = terminated.get(), .events = POLLIN, .revents = 0},
                        {.fd = watch != nullptr ? watch->fd() : -1, .events = POLLIN, .revents = 0},
                        {.fd = hang_ != nullptr ? hang_->fd() : -1, .events = POLLIN, .revents = 0}};
    const bool due = watch != nullptr && watch->due();
    const auto hang_due = hang_ != nullptr ? hang_->due() : std::nullopt;
    int timeout_ms = due ? watch->due()->poll_timeout_ms() : -1;
    if (hang_due && (timeout_ms < 0 || hang_due->poll_timeout_ms() < timeout_ms))
      timeout_ms = hang_due->poll_timeout_ms();
    if (::poll(entries, 5, timeout_ms) < 0 && errno != EINTR) return;
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
    if (entries[4].revents != 0 || (hang_due && hang_due->expired())) hanging([](HangWatch& each) { each.advance(); });
    if (due && watch->due()->expired()) store_.set(report_key(node_.name), encode(watch->report()));
  }
}

/// If the nodes have not agreed yet, their tasks have not started, and would not notice Slurm's signals.
void EndReporter::end_step() {
  store_.set_first(kDecisionKey, encode(NetworkDecision{.reason = "the step is being ended"}));
  give_up_place(store_);
}

bool EndReporter::take(int channel, NodeWatch* watch, bool& ended) {
  const TaskNews news = take_news(channel, ended);
  if (const auto* end = std::get_if<TaskEnd>(&news)) {
    const auto rank = static_cast<std::uint32_t>(node_.first_rank + end->task);
    report({.rank = rank, .status = end->status, .when_ms = end->when_ms, .node = node_.name}, end->awaited != 0);
    hanging(
        [&](HangWatch& each) { each.ended(static_cast<int>(rank)); });  // its node's last end, after which it is killed
    if (end->awaited != 0) confirm_end(channel);
    if (watch != nullptr) watch->ended(static_cast<int>(rank), end->status);
    return true;
  }
  if (const auto* start = std::get_if<TaskStart>(&news)) {
    const auto rank = static_cast<int>(start->rank);
    if (watch != nullptr) watch->started(rank, start->pid);
    hanging([&](HangWatch& each) { each.started(rank, start->pid); });
  }
  return false;
}

void EndReporter::report(const RankEnd& end, bool awaited) {
  const std::string key = end.status == 0 ? end_key(end.rank) : std::string{kFailureKey};
  // Only what is answered is known to have arrived, with all that was said before on this connection.
  if (awaited || end.status != 0) {
    store_.set_first(key, encode(end));
  } else {
    store_.set(key, encode(end));
  }
}

}  // namespace ddp::srun_plugin
