// What threads of libddp leave to threads of Python's: ends of operations, whose futures call Python, and tensors,
// which may be the last to hold a Python object. After the interpreter's end it is lost.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include <Python.h>

#include <ddp/torch/device_streams.hpp>

namespace ddp_adapter {

class PythonTasks {
 public:
  static PythonTasks& instance() { return *current(); }
  /// At the beginning, and in a forked child, where nobody comes for what was left.
  static void start() { current() = new PythonTasks; }

  /// The task runs at once on a thread that Python knows.
  static void take(std::function<void()> task) {
    if (PyGILState_GetThisThreadState() != nullptr) return task();
    PythonTasks& all = instance();
    const std::lock_guard lock(all.mutex_);
    all.tasks_.push_back(std::move(task));
    all.changed_.notify_one();
  }

  /// Runs tasks, without the GIL, until stop(). For several threads of Python's: callbacks wait for other operations.
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopped_) {
      if (tasks_.empty()) {
        changed_.wait(lock);
        continue;
      }
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task();
      } catch (const std::exception& problem) {  // of a callback; the thread goes on
        std::fprintf(stderr, "libddp: a callback at the end of an operation failed: %s\n", problem.what());
      }
      task = nullptr;
      lock.lock();
    }
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  PythonTasks() = default;
  /// Never destroyed: threads of libddp outlive exit handlers.
  static PythonTasks*& current() {
    static PythonTasks* tasks = nullptr;
    return tasks;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
};

}  // namespace ddp_adapter
