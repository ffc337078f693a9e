// Ctrl-C while a call of torch.distributed waits in C++: the wait goes on in a thread of its own, the main thread of
// the program looks for signals.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <torch/csrc/utils/pybind.h>

namespace ddp_adapter {

struct Waiting {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr problem;
};

/// Leaves signals to the process's other threads.
inline void start_waiting(const std::shared_ptr<Waiting>& waiting, std::function<void()> wait) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};
  std::thread([waiting, wait = std::move(wait)]() mutable {
    std::exception_ptr problem;
    try {
      wait();
    } catch (...) {
      problem = std::current_exception();
    }
    wait = nullptr;  // before anybody hears of the end
    const std::lock_guard lock(waiting->mutex);
    waiting->problem = std::move(problem);
    waiting->done = true;
    waiting->ended.notify_one();
  }).detach();
}

/// Without the GIL. Throws KeyboardInterrupt, or what a signal's handler has raised. Only the main thread runs
/// handlers.
inline void run_interruptibly(std::function<void()> wait) {
  constexpr std::chrono::milliseconds kSignalLook{50};
  if (::gettid() != ::getpid()) return wait();
  const auto waiting = std::make_shared<Waiting>();
  start_waiting(waiting, std::move(wait));
  std::unique_lock lock(waiting->mutex);
  while (!waiting->ended.wait_for(lock, kSignalLook, [&] { return waiting->done; })) {
    lock.unlock();
    {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    lock.lock();
  }
  if (waiting->problem) std::rethrow_exception(waiting->problem);
}

}  // namespace ddp_adapter
