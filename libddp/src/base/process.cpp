#include "base/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/library_thread.hpp"

namespace ddp::base {
namespace {

constexpr std::chrono::seconds kKillLimit{5};
constexpr std::chrono::milliseconds kPauseWithoutPidfd{5};

UniqueFd open_pidfd(pid_t pid) noexcept { return UniqueFd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U))}; }

/// In place of a pidfd: a pipe at whose other end a thread waits for the child, which it leaves to be reaped.
UniqueFd watch_by_thread(pid_t pid) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw system_error(fmt::format("watching process {} (pipe2)", pid), errno);
  UniqueFd watched{ends[0]};
  start_thread([pid, end = UniqueFd{ends[1]}] {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    [[maybe_unused]] const ssize_t written = ::write(end.get(), "", 1);  // which a fork may hold open, too
  }).detach();
  return watched;
}

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
    if (number != ENOSYS && number != EPERM) {
      throw system_error(fmt::format("watching process {} (pidfd_open)", pid_), number);
    }
    pidfd_ = watch_by_thread(pid_);
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
  signal(SIGCONT);  // a stopped one acts on no other signal
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

ProcessNumber own_process() {
  ProcessNumber own{.pid = ::getpid(), .space = 0};
  std::array<char, 16> name{};
  const ssize_t size = ::readlink("/proc/self", name.data(), name.size());
  struct stat status {};
  if (size > 0 && std::string(name.data(), static_cast<std::size_t>(size)) == std::to_string(own.pid) &&
      ::stat("/proc/self/ns/pid", &status) == 0) {
    own.space = status.st_ino;
  }
  return own;
}

ProcessLife life_of(const ProcessNumber& process) {
  if (process.space == 0 || process.space != own_process().space) return ProcessLife::unknown;
  const UniqueFd file{::open(("/proc/" + std::to_string(process.pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) {  // where /proc hides others' processes, it has no file of a living one either
    return ::kill(process.pid, 0) != 0 && errno == ESRCH ? ProcessLife::gone : ProcessLife::unknown;
  }
  std::array<char, 512> bytes{};
  const ssize_t size = ::read(file.get(), bytes.data(), bytes.size());
  if (size <= 0) return errno == ESRCH ? ProcessLife::gone : ProcessLife::unknown;
  const std::string text(bytes.data(), static_cast<std::size_t>(size));
  const auto name_end = text.rfind(')');  // the name may have any character
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return ProcessLife::unknown;
  switch (text[name_end + 2]) {
    case 'T':
    case 't': return ProcessLife::stopped;
    case 'X':
    case 'x':
    case 'Z': return ProcessLife::gone;
    default: return ProcessLife::runs;
  }
}

std::string signal_name(int signal) {
  if (const char* name = sigabbrev_np(signal); name != nullptr) return fmt::format("SIG{}", name);
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) return fmt::format("SIGRTMIN+{}", signal - SIGRTMIN);
  return fmt::format("signal {}", signal);
}

}  // namespace ddp::base
