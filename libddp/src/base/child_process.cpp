#include "base/child_process.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/system_error.hpp"

namespace ddp::base {
namespace {

constexpr std::chrono::seconds kKillLimit{5};
constexpr std::chrono::milliseconds kPauseWithoutPidfd{5};

UniqueFd open_pidfd(pid_t pid) noexcept { return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U))}; }

}  // namespace

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  ChildProcess taken{std::move(other)};
  swap(taken);
  return *this;
}

void ChildProcess::swap(ChildProcess& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(end_, other.end_);
}

int ChildProcess::pidfd() {
  if (!pidfd_) pidfd_ = open_pidfd(pid_);
  if (!pidfd_) {
    const int number = errno;
    throw system_error(fmt::format("watching process {} (pidfd_open)", pid_), number,
                       number == ENOSYS ? "Linux 5.3 or newer is needed" : "");
  }
  return pidfd_.get();
}

std::optional<ProcessEnd> ChildProcess::end() noexcept {
  if (end_ || pid_ <= 0) return end_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0) {
    if (errno == ECHILD) end_ = ProcessEnd{};
  } else if (info.si_pid != 0) {
    end_ = ProcessEnd{.code = info.si_status, .by_signal = info.si_code != CLD_EXITED};
  }
  return end_;
}

bool ChildProcess::wait(Deadline deadline) noexcept {
  while (pid_ > 0 && !end()) {
    if (deadline.expired()) return false;
    if (!pidfd_) pidfd_ = open_pidfd(pid_);
    const Deadline pause = pidfd_ ? deadline : earlier(deadline, Deadline::after(kPauseWithoutPidfd));
    pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};  // poll(2) ignores -1
    ::poll(&entry, 1, pause.poll_timeout_ms());
  }
  return true;
}

void ChildProcess::signal(int number) noexcept {
  if (pid_ > 0 && !end()) ::kill(pid_, number);
}

bool ChildProcess::terminate(Deadline deadline) noexcept {
  signal(SIGTERM);
  return wait(deadline) || kill();
}

bool ChildProcess::kill() noexcept {
  signal(SIGKILL);
  if (wait(Deadline::after(kKillLimit))) return true;
  pid_ = -1;
  return false;
}

UniqueFd ChildProcess::release() {
  pidfd();
  pid_ = -1;
  return std::move(pidfd_);
}

}  // namespace ddp::base
