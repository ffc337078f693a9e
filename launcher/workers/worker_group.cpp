#include "workers/worker_group.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"

namespace ddp::launcher {
namespace {

// For the kernel to end a killed process; one in uninterruptible sleep may never end.
constexpr std::chrono::seconds kKillPatience{5};

}  // namespace

WorkerGroup::~WorkerGroup() {
  signal_groups(SIGKILL);
  end(Deadline::after(kKillPatience));
  for (const Worker& worker : workers_) {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(worker.process.pid), &info, WEXITED | WNOHANG);
  }
}

bool WorkerGroup::end(Deadline deadline) const noexcept {
  for (const Worker& worker : workers_) {
    if (!worker.ended) ::kill(-worker.process.pid, SIGKILL);
  }
  try {
    for (const Worker& worker : workers_) {
      if (!worker.ended && !base::wait_for(worker.process.pidfd.get(), POLLIN, deadline)) return false;
    }
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "waiting for killed workers: {}", error.what());
  }
  return true;
}

std::vector<pid_t> WorkerGroup::pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) pids.push_back(worker.process.pid);
  return pids;
}

void WorkerGroup::signal_groups(int signal) const {
  for (const Worker& worker : workers_) {
    ::kill(-worker.process.pid, signal);
  }
}

void WorkerGroup::kill_groups(const std::vector<int>& local_ranks) const {
  for (const int local : local_ranks) {
    if (static_cast<std::size_t>(local) < workers_.size()) ::kill(-pid(local), SIGKILL);
  }
}

void WorkerGroup::signal_workers(int signal) const {
  for (const Worker& worker : workers_) {
    if (!worker.ended) ::kill(worker.process.pid, signal);
  }
}

std::optional<RankEnd> WorkerGroup::take_end(int local_rank) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  if (worker.ended) return std::nullopt;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(worker.process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  worker.ended = true;
  worker.process.pidfd.reset();
  return RankEnd{.code = info.si_status,
                 .by_signal = info.si_code != CLD_EXITED,
                 .core_dumped = info.si_code == CLD_DUMPED,
                 .time = std::chrono::system_clock::now()};
}

std::vector<StopChange> WorkerGroup::take_stop_changes() const {
  std::vector<StopChange> changes;
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0 || info.si_pid == 0) return changes;
    const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                     [&](const Worker& candidate) { return candidate.process.pid == info.si_pid; });
    if (worker == workers_.end()) continue;  // an adopted orphan
    changes.push_back({.local_rank = static_cast<int>(worker - workers_.begin()),
                       .signal = info.si_code == CLD_CONTINUED ? 0 : info.si_status});
  }
}

namespace {

// A rank takes its pidfd, its connections to the PMIx server and the store, two pipes (both ends of each until it runs)
// with two log files and, while it starts, two pipe ends and an accepted socket.
constexpr rlim_t kPerRank = 11;
// Standard streams, epoll, signals, the control connection, and the PMIx server's own files and sockets.
constexpr rlim_t kFixed = 64;

}  // namespace

rlimit raise_descriptor_limit(int num_ranks) {
  rlimit original{};
  if (::getrlimit(RLIMIT_NOFILE, &original) != 0) throw base::system_error("reading the limit of open files", errno);
  const rlim_t needed = kFixed + kPerRank * static_cast<rlim_t>(num_ranks);
  if (original.rlim_cur >= needed) return original;
  if (original.rlim_max < needed) {
    const rlim_t possible = original.rlim_max > kFixed ? (original.rlim_max - kFixed) / kPerRank : 0;
    throw Error{{.code = ErrorCode::system,
                 .attempted = fmt::format("preparing to start {} rank{}", num_ranks, num_ranks == 1 ? "" : "s"),
                 .cause = fmt::format("this needs {} open files, but the hard limit is {}", needed, original.rlim_max),
                 .native = base::errno_name(EMFILE),
                 .hint = possible == 0 ? "raise it (ulimit -Hn)"
                                       : fmt::format("raise it (ulimit -Hn), or start {} at most", possible)}};
  }
  rlimit raised = original;
  raised.rlim_cur = needed;
  if (::setrlimit(RLIMIT_NOFILE, &raised) != 0) throw base::system_error("raising the limit of open files", errno);
  return original;
}

void allow_connections(rlim_t connections, int num_ranks) {
  rlimit limit{};
  const rlim_t needed = kFixed + kPerRank * static_cast<rlim_t>(num_ranks) + connections;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == needed) return;
  base::write_stderr_line(
      fmt::format("ddprun: warning: {} open files may be needed, but the hard limit is {}; raise it (ulimit -Hn)",
                  needed, limit.rlim_max));
}

}  // namespace ddp::launcher
