// Threads that belong to the library must not run the host program's signal handlers, and must not end it by SIGPIPE
// when a peer's socket is gone.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace ddp::base {

/// While it lives, the calling thread gets no signals but those of its own faults. Threads started meanwhile, by
/// whichever library, inherit that for good: this is how to reach threads that others start.
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
  ~SignalsBlocked() {
    // a SIGPIPE of a write in the meantime is still pending, and would be delivered now
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (sigismember(&before_, SIGPIPE) == 0) {
      const timespec at_once{.tv_sec = 0, .tv_nsec = 0};
      while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
};

/// Starts a thread of the library's own.
template <class Function>
std::thread start_thread(Function&& function) {
  const SignalsBlocked blocked;
  return std::thread(std::forward<Function>(function));
}

}  // namespace ddp::base
