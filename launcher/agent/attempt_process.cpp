#include "agent/attempt_process.hpp"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "agent/attempt.hpp"
#include "base/stderr_line.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {
namespace {

// If the child kept the agent's connections open, their peers would not notice the agent's death.
constexpr int kConnectionFd = 3;

[[noreturn]] void run_attempt(const NodeJob& job, const control::PrepareAttempt& plan, int connection) {
  int status = 0;
  try {
    ::prctl(PR_SET_NAME, "ddprun-attempt");
    ::setsid();  // signals to the agent's terminal or process group are not for ranks (see step_signals.hpp)
    if (connection != kConnectionFd && ::dup2(connection, kConnectionFd) < 0)
      throw base::system_error("starting an attempt (dup2)", errno);
    for (int fd = kConnectionFd + 1, failures = 0; ::syscall(SYS_close_range, fd, ~0U, 0U) != 0 && failures < 65536;
         ++fd, ++failures) {
      ::close(fd);  // Linux before 5.9
    }
    Attempt attempt{job, plan, control::Connection{base::UniqueFd{kConnectionFd}, "ddprun's agent"}};
    attempt.run();
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddprun: {}: {}", job.host, error.what()));
    status = 1;
  }
  ::_exit(status);  // without the destructors of the parent's objects
}

}  // namespace

AttemptProcess start_attempt_process(const NodeJob& job, const control::PrepareAttempt& plan) {
  control::ConnectionPair pair = control::make_pair();
  const pid_t pid = ::fork();
  if (pid == 0) run_attempt(job, plan, pair.second.get());
  if (pid < 0) {
    throw base::system_error("starting an attempt (fork)", errno,
                             "check the limit of processes (ulimit -u) and of the cgroup");
  }
  base::ChildProcess process{pid};
  return {.connection = control::Connection{std::move(pair.first), fmt::format("the attempt process (pid {})", pid)},
          .process = std::move(process)};
}

}  // namespace ddp::launcher
