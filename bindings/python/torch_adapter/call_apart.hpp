// A call on a thread of its own that takes no signals, while the main thread waits and looks for them: Python runs a
// signal's handler on the main thread only. Includes no Python, because libddp's bindings and PyTorch's bring their
// own.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace ddp_adapter {

/// How long a signal may wait for its handler.
inline constexpr std::chrono::milliseconds kSignalLook{50};

/// The call goes on when nobody waits for it any more. Thread-safe.
class CallApart {
 public:
  static std::shared_ptr<CallApart> start(std::function<void()> task) {
    auto call = std::make_shared<CallApart>();
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct Restore {
      const sigset_t& mask;
      ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const restore{before};
    std::thread([call, task = std::move(task)]() mutable { call->run(task); }).detach();
    return call;
  }

  bool ended_within(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, limit, [this] { return done_; });
  }
  /// After its end: throws what the call has thrown.
  void check() const {
    if (problem_) std::rethrow_exception(problem_);
  }

 private:
  void run(std::function<void()>& task) {
    std::exception_ptr problem;
    try {
      task();
    } catch (...) {
      problem = std::current_exception();
    }
    task = nullptr;  // before anybody hears of the end
    const std::lock_guard lock(mutex_);
    problem_ = std::move(problem);
    done_ = true;
    ended_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr problem_;
};

}  // namespace ddp_adapter
