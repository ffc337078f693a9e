#include "events/signal_inbox.hpp"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/errors.hpp"

namespace ddp::launcher {
namespace {

bool ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void set_disposition(int signal, void (*handler)(int)) {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = handler;
  if (::sigaction(signal, &action, nullptr) != 0) throw base::system_error("setting a signal's disposition", errno);
}

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    const bool may_be_ignored = signal == SIGHUP || signal == SIGTSTP;
    if (!may_be_ignored || !ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

void block(const sigset_t& set) {
  const int status = ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (status != 0) throw base::system_error("blocking signals", status);
}

}  // namespace

void hold_signals(const std::vector<int>& signals) { block(set_of(signals)); }

SignalInbox::SignalInbox(const std::vector<int>& signals) : hangup_ignored_(ignored(SIGHUP)) {
  // With an inherited SIG_IGN the kernel would reap workers, and their exit codes would be lost.
  set_disposition(SIGCHLD, SIG_DFL);
  set_disposition(SIGPIPE, SIG_IGN);
  sigset_t set = set_of(signals);
  sigaddset(&set, SIGCHLD);
  block(set);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_) throw base::system_error("receiving signals (signalfd)", errno);
}

base::UniqueFd untaken(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return base::UniqueFd{::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
}

std::vector<ReceivedSignal> SignalInbox::take() {
  std::vector<ReceivedSignal> signals;
  std::array<signalfd_siginfo, 16> batch;
  for (;;) {
    const ssize_t size = ::read(fd_.get(), batch.data(), sizeof batch);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return signals;
    if (size < 0) throw base::system_error("reading a signal", errno);
    const auto count = static_cast<std::size_t>(size) / sizeof(signalfd_siginfo);
    for (std::size_t i = 0; i < count; ++i) {
      signals.push_back(
          {.number = static_cast<int>(batch[i].ssi_signo), .sender = static_cast<pid_t>(batch[i].ssi_pid)});
    }
  }
}

}  // namespace ddp::launcher
