#include "agent/attempt_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "agent/attempt.hpp"
#include "agent/standby.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "workers/orphans.hpp"

namespace ddp::launcher {
namespace {

// If the child kept the agent's connections open, their peers would not notice the agent's death.
constexpr int kConnectionFd = 3;
constexpr int kConsoleFd = 4;

/// Gives both their numbers, whatever they have. @param console -1: there is none
void place(int connection, int console) {
  // Above both numbers first, as either may have the other's.
  for (int* const fd : {&connection, &console}) {
    if (*fd < 0) continue;
    *fd = ::fcntl(*fd, F_DUPFD_CLOEXEC, kConsoleFd + 1);
    if (*fd < 0) throw base::system_error("starting an attempt (fcntl)", errno);
  }
  if (::dup3(connection, kConnectionFd, O_CLOEXEC) < 0 || (console >= 0 && ::dup3(console, kConsoleFd, O_CLOEXEC) < 0))
    throw base::system_error("starting an attempt (dup3)", errno);
}

enum class Begin { with_plan, first_standby, standby };

/// @param plan of a standby: one like that which it will get
[[noreturn]] void run_attempt(const NodeJob& job, const control::PrepareAttempt& plan, Begin begin, int connection,
                              int console) {
  int status = 0;
  try {
    ::prctl(PR_SET_NAME, begin == Begin::with_plan ? "ddprun-attempt" : "ddprun-standby");
    ::setsid();  // signals to the agent's terminal or process group are not for ranks (see step_signals.hpp)
    place(connection, console);
    for (int fd = console >= 0 ? kConsoleFd + 1 : kConsoleFd, failures = 0;
         ::syscall(SYS_close_range, fd, ~0U, 0U) != 0 && failures < 65536; ++fd, ++failures) {
      ::close(fd);  // Linux before 5.9
    }
    auto job_console =
        console < 0 ? nullptr : std::make_shared<control::Connection>(base::UniqueFd{kConsoleFd}, "the job's console");
    control::Connection agent{base::UniqueFd{kConnectionFd}, "ddprun's agent"};
    std::optional<StandbyWork> standby;
    if (begin != Begin::with_plan) {
      standby = stand_by(job, plan, begin == Begin::first_standby, agent);
      if (!standby) {
        kill_descendants();  // what the interpreters' modules have started
        ::_exit(0);
      }
      ::prctl(PR_SET_NAME, "ddprun-attempt");
      if (standby->plan.console_window_bytes == 0) job_console.reset();
    }
    Attempt attempt{job, standby ? standby->plan : plan, std::move(agent), std::move(job_console),
                    standby ? &*standby : nullptr};
    attempt.run();
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddprun: {}: {}", job.host, error.what()));
    status = 1;
  }
  ::_exit(status);  // without the destructors of the parent's objects
}

AttemptProcess start(const NodeJob& job, const control::PrepareAttempt& plan, Begin begin) {
  control::ConnectionPair pair = control::make_pair();
  control::ConnectionPair console;
  if (plan.console_window_bytes > 0) console = control::make_pair();
  const pid_t pid = ::fork();
  if (pid == 0) run_attempt(job, plan, begin, pair.second.get(), console.second.get());
  if (pid < 0) {
    throw base::system_error("starting an attempt (fork)", errno,
                             "check the limit of processes (ulimit -u) and of the cgroup");
  }
  base::ChildProcess process{pid};
  const std::string name = fmt::format("the attempt process (pid {})", pid);
  AttemptProcess started{.connection = control::Connection{std::move(pair.first), name}, .process = std::move(process)};
  if (console.first) started.console.emplace(std::move(console.first), name);
  return started;
}

}  // namespace

AttemptProcess start_attempt_process(const NodeJob& job, const control::PrepareAttempt& plan) {
  return start(job, plan, Begin::with_plan);
}

AttemptProcess start_standby_process(const NodeJob& job, const control::PrepareAttempt& like, bool first) {
  return start(job, like, first ? Begin::first_standby : Begin::standby);
}

}  // namespace ddp::launcher
