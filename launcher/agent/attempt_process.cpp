#include "agent/attempt_process.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "agent/attempt.hpp"
#include "base/socket.hpp"
#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "outcome/signal_name.hpp"

namespace ddp::launcher {
namespace {

// The child must not keep the agent's connections open: their other ends would not notice the agent's death.
constexpr int kConnectionFd = 3;

[[noreturn]] void run_attempt(const NodeJob& job, const control::PrepareAttempt& plan, int connection) {
  int status = 0;
  try {
    ::prctl(PR_SET_NAME, "ddprun-attempt");
    ::setsid();  // what the agent's terminal or process group gets is not meant for ranks (see step_signals.hpp)
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
  ::_exit(status);  // what the parent's objects do at their end is the parent's business
}

}  // namespace

AttemptProcess::AttemptProcess(const NodeJob& job, const control::PrepareAttempt& plan) : attempt_(plan.attempt) {
  control::ConnectionPair pair = control::make_pair();
  pid_ = ::fork();
  if (pid_ == 0) run_attempt(job, plan, pair.second.get());
  if (pid_ < 0) {
    throw base::system_error("starting an attempt (fork)", errno,
                             "check the limit of processes (ulimit -u) and of the cgroup");
  }
  connection_.emplace(std::move(pair.first), fmt::format("the attempt process (pid {})", pid_));
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0U)));
  if (!pidfd_) {
    const int number = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw base::system_error("starting an attempt (pidfd_open)", number, "Linux 5.3 or newer is needed");
  }
}

AttemptProcess::~AttemptProcess() {
  if (!how_it_ended().empty()) return;
  ::kill(pid_, SIGKILL);
  wait(Deadline::after(std::chrono::seconds(5)));
}

std::string AttemptProcess::how_it_ended() {
  if (!end_.empty()) return end_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return {};
  end_ = info.si_code == CLD_EXITED ? fmt::format("ended with exit code {}", info.si_status)
                                    : fmt::format("was ended by {}", signal_name(info.si_status));
  return end_;
}

bool AttemptProcess::wait(Deadline deadline) {
  while (how_it_ended().empty()) {
    if (!base::wait_for(pidfd_.get(), POLLIN, deadline)) return false;
  }
  return true;
}

}  // namespace ddp::launcher
