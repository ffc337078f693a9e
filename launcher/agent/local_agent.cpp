#include "agent/local_agent.hpp"

#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "base/host_name.hpp"
#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "options/program_lookup.hpp"
#include "placement/node_placement.hpp"
#include "report/failure_report.hpp"
#include "report/signal_name.hpp"
#include "workers/descriptor_limit.hpp"
#include "workers/leftover_processes.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {
namespace {

// A program that lies on a file system that does not answer must not hold up the others for ever.
constexpr std::chrono::seconds kSpawnLimit{60};
// Processes that outlived the worker that started them may react to SIGTERM for this long.
constexpr std::chrono::seconds kLeftoverGrace{1};
constexpr std::chrono::seconds kLeftoverLimit{6};
// Where execvp(3) looks when PATH is unset.
constexpr const char* kDefaultPath = "/bin:/usr/bin";

/// epoll, with what it watches named by a number: local ranks, or one of the following.
class EventLoop {
 public:
  static constexpr std::uint64_t kSignals = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t kAborts = kSignals - 1;

  EventLoop() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!fd_) throw base::system_error("making an event loop (epoll_create1)", errno);
  }
  void watch(int fd, std::uint64_t name) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = name;
    if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw base::system_error("watching a descriptor", errno);
  }
  /// What has become readable, in the order in which it did; nothing at the deadline.
  std::vector<std::uint64_t> wait(Deadline deadline) {
    std::array<epoll_event, 64> events;
    const int count =
        ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), deadline.poll_timeout_ms());
    if (count < 0 && errno != EINTR) throw base::system_error("waiting for events (epoll_wait)", errno);
    std::vector<std::uint64_t> names;
    for (int i = 0; i < count; ++i) names.push_back(events[static_cast<std::size_t>(i)].data.u64);
    return names;
  }

 private:
  base::UniqueFd fd_;
};

void send(const WorkerGroup& workers, const SignalOrders& orders) {
  for (const SignalOrder& order : orders) {
    if (order.target == SignalOrder::Target::groups) {
      workers.signal_groups(order.signal);
    } else {
      workers.signal_workers(order.signal);
    }
  }
}

/// What users' own settings do not fit, once for all ranks that have it.
void report_conflicts(const std::vector<RankPlacement>& placements) {
  std::set<std::string> reported;
  for (const RankPlacement& placement : placements) {
    for (const topology::Setting& setting : placement.settings) {
      if (setting.conflict.empty()) continue;
      std::string line = fmt::format("{}={} is kept, but {}", setting.name, setting.value, setting.conflict);
      if (reported.insert(line).second) base::write_stderr_line(fmt::format("ddprun: warning: {}", line));
    }
  }
}

}  // namespace

LocalAgent::LocalAgent(LaunchOptions options, base::Environment environment)
    : options_(std::move(options)), environment_(std::move(environment)), host_(base::host_name()) {}

template <class... Args>
void LocalAgent::tell(fmt::format_string<Args...> format, Args&&... args) const {
  if (options_.verbose)
    base::write_stderr_line(fmt::format("ddprun: {}", fmt::format(format, std::forward<Args>(args)...)));
}

int LocalAgent::run() {
  for (const auto& [name, closest] : environment_.unknown_ddp_variables()) {
    base::write_stderr_line(
        fmt::format("ddprun: warning: the environment variable {} is not known; did you mean {}?", name, closest));
  }
  const std::string program = find_program(options_.command.front(), environment_.raw("PATH").value_or(kDefaultPath));
  SignalInbox signals;
  become_subreaper();

  auto tmpdir = environment_.raw("TMPDIR").value_or("");
  PmixServer server{tmpdir.empty() ? "/tmp" : tmpdir};
  const JobNamespace job{
      server, {.name_space = make_namespace_name(host_, 0), .host = host_, .num_ranks = options_.nproc_per_node}};
  tell("PMIx namespace {}, server folder {}", job.name(), server.directory());

  JobOutcome outcome;
  try {
    WorkerGroup workers = start_workers(program, job, signals);
    outcome = supervise(workers, signals, server.aborts());
    const int left_behind = end_what_is_left(workers.pids());
    if (!outcome.success() || left_behind > 0) server.abandon();
  } catch (...) {
    server.abandon();
    end_what_is_left({});  // the workers themselves are gone
    throw;
  }

  const std::string report = format_failure_report(outcome, {.program = options_.command.front(), .host = host_});
  std::fwrite(report.data(), 1, report.size(), stderr);
  return outcome.exit_status();
}

WorkerGroup LocalAgent::start_workers(const std::string& program, const JobNamespace& job,
                                      const SignalInbox& signals) const {
  const rlimit descriptor_limit = raise_descriptor_limit(options_.nproc_per_node);
  const std::vector<RankPlacement> placements = place_ranks(options_, environment_);
  report_conflicts(placements);
  const EnvironmentMap inheritable = without_task_identity(environment_.variables());
  WorkerGroup workers;
  for (int rank = 0; rank < options_.nproc_per_node; ++rank) {
    const RankPlacement& placement = placements.at(static_cast<std::size_t>(rank));
    EnvironmentMap environment = worker_environment(inheritable,
                                                    {.rank = rank,
                                                     .local_rank = rank,
                                                     .world_size = options_.nproc_per_node,
                                                     .local_world_size = options_.nproc_per_node,
                                                     .node_rank = 0,
                                                     .num_nodes = 1},
                                                    placement.settings);
    for (auto& [name, value] : job.client_environment(rank)) environment[name] = value;
    workers.add(spawn_worker({.rank = rank,
                              .path = program,
                              .arguments = options_.command,
                              .environment = environment_lines(environment),
                              .descriptor_limit = descriptor_limit,
                              .ignore_hangup = signals.hangup_ignored(),
                              .binding = placement.binding},
                             Deadline::after(kSpawnLimit)));
    tell("started rank {}: pid {}; {}", rank, workers.pid(rank), placement.summary);
  }
  return workers;
}

JobOutcome LocalAgent::supervise(WorkerGroup& workers, SignalInbox& signals, AbortInbox& aborts) const {
  EventLoop loop;
  loop.watch(signals.fd(), EventLoop::kSignals);
  loop.watch(aborts.fd(), EventLoop::kAborts);
  std::vector<RankName> names;
  for (int rank = 0; rank < options_.nproc_per_node; ++rank) {
    loop.watch(workers.pidfd(rank), static_cast<std::uint64_t>(rank));
    names.push_back({.rank = rank, .local_rank = rank, .pid = workers.pid(rank)});
  }
  Supervisor supervisor{names,
                        {.failure_grace = options_.failure_grace, .shutdown_timeout = options_.shutdown_timeout}};
  const std::vector<pid_t> pids = workers.pids();

  const auto follow = [&](const SignalOrders& orders) {
    for (const SignalOrder& order : orders) {
      tell("sending {} to the ranks{}", signal_name(order.signal),
           order.target == SignalOrder::Target::groups ? "' process groups" : "");
    }
    send(workers, orders);
  };
  const auto take_stops = [&] {
    for (const StopChange& change : workers.take_stop_changes()) {
      if (change.signal == 0) {
        tell("rank {} goes on", change.local_rank);
        supervisor.rank_continued(change.local_rank);
      } else {
        base::write_stderr_line(fmt::format(
            "ddprun: rank {} (pid {}) was stopped by {}; the job waits for it (kill -CONT {})", change.local_rank,
            workers.pid(change.local_rank), signal_name(change.signal), workers.pid(change.local_rank)));
        supervisor.rank_stopped(change.local_rank, change.signal, Moment::now());
      }
    }
  };

  while (!supervisor.done()) {
    // Without a limit of its own the wait still ends once a day, which does no harm.
    const auto limit = supervisor.next_deadline();
    const auto events = loop.wait(limit.value_or(Deadline::after(std::chrono::hours(24))));
    // Stops first: one that was there before a failure must be known when the failure is judged.
    take_stops();
    if (std::find(events.begin(), events.end(), EventLoop::kAborts) != events.end()) {
      for (AbortMessage& call : aborts.take()) {
        tell("rank {} called PMIx_Abort({})", call.rank, call.status);
        follow(supervisor.rank_aborted(call.rank, {.status = call.status, .message = std::move(call.message)},
                                       Moment::now()));
      }
    }
    for (const std::uint64_t event : events) {
      if (event == EventLoop::kAborts) continue;
      if (event == EventLoop::kSignals) {
        for (const int signal : signals.take()) {
          if (signal == SIGCHLD) {
            reap_orphans(pids);
          } else {
            tell("received {}", signal_name(signal));
            follow(supervisor.signal_received(signal, Moment::now()));
          }
        }
        continue;
      }
      const int rank = static_cast<int>(event);
      if (const auto end = workers.take_end(rank)) {
        tell("rank {} ended: {}", rank,
             end->by_signal ? signal_name(end->code) : fmt::format("exit code {}", end->code));
        follow(supervisor.rank_ended(rank, *end, Moment::now()));
      }
    }
    follow(supervisor.time_passed(Moment::now()));
  }
  return supervisor.outcome();
}

int LocalAgent::end_what_is_left(std::span<const pid_t> workers) const {
  const LeftoverCount left = end_leftovers(workers, Deadline::after(kLeftoverGrace), Deadline::after(kLeftoverLimit));
  if (left.ended > 0) tell("ended {} processes that ranks had left behind", left.ended);
  if (left.remaining > 0) {
    base::write_stderr_line(
        fmt::format("ddprun: {} processes that ranks left behind did not end even after SIGKILL", left.remaining));
  }
  return left.ended + left.remaining;
}

}  // namespace ddp::launcher
