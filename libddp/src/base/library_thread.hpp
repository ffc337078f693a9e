// Threads of the library: started without signals, and calls that may be abandoned when their deadline passes.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include <ddp/deadline.hpp>

#include "base/errors.hpp"

namespace ddp::base {

// Threads that belong to the library must not run the host program's signal handlers, and must not end it by SIGPIPE
// when a peer's socket is gone.

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
  SignalsBlocked& operator=(SignalsBlocked&&) = delete;
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

// Calls of other libraries that have no deadline and may hang: a resolver, a PMIx server, a GPU driver.

/// Calls @p function on a thread of its own. Returns what it returns or throws what it throws; nothing at the deadline:
/// then the thread is abandoned, so that @p function must own all that it touches. Throws Error(system) when there can
/// be no more threads.
template <class Function>
std::optional<std::invoke_result_t<Function>> abandonable_call(Function function, Deadline deadline) {
  using Result = std::invoke_result_t<Function>;
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> result = promise->get_future();
  start_thread([promise, call = std::move(function)]() mutable {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_until(deadline.when()) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace ddp::base
