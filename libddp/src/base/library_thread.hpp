// Threads that belong to the library must not run the host program's signal handlers, and must not end it by SIGPIPE
// when a peer's socket is gone.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/system_error.hpp"

namespace ddp::base {

/// While it lives, the calling thread gets no signals but those of its own faults. Threads started meanwhile inherit
/// that for good.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

/// Starts a thread of the library's own. Throws Error(system) when there can be no more.
template <class Function>
std::thread start_thread(Function&& function) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw system_error("starting a thread", error.code().value(),
                       "check the limit of processes (ulimit -u) and of the cgroup");
  }
}

}  // namespace ddp::base
