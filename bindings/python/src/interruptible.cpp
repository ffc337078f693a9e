#include "interruptible.hpp"

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "gil.hpp"

namespace ddp::python {
namespace {

/// How long a signal may wait for its handler.
constexpr std::chrono::milliseconds kSignalLook{50};

struct Call {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::exception_ptr problem;
};

/// Signals are this process's other threads' to take.
std::thread start_quiet_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};
  return std::thread(std::move(body));
}

}  // namespace

void run_interruptibly(std::function<void()> task) {
  if (::gettid() != ::getpid()) {
    const WithoutGil released;
    return task();
  }
  const auto call = std::make_shared<Call>();
  start_quiet_thread([call, task = std::move(task)]() mutable {
    std::exception_ptr problem;
    try {
      task();
    } catch (...) {
      problem = std::current_exception();
    }
    task = nullptr;  // before anybody hears of the end
    const std::lock_guard lock(call->mutex);
    call->problem = std::move(problem);
    call->done = true;
    call->ended.notify_one();
  }).detach();
  for (;;) {
    {
      const WithoutGil released;
      std::unique_lock lock(call->mutex);
      if (call->ended.wait_for(lock, kSignalLook, [&] { return call->done; })) break;
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
  if (call->problem) std::rethrow_exception(call->problem);
}

}  // namespace ddp::python
