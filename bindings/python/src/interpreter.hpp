// Rules of Python's interpreter: the GIL, signals while a call waits, objects that one call at a time may use.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::python {

// Python's lock in threads that the interpreter may leave behind. Before Python 3.14, one that wants the GIL after the
// interpreter's end is ended by pthread_exit, and where that unwinds into a destructor or another noexcept function, of
// which nanobind is full, it aborts the process (https://docs.python.org/3/c-api/init.html, PyEval_RestoreThread).

/// Calls what may take the GIL: any Python code. A thread that is to end there stops for good instead, as in Python
/// 3.14, and goes with the process. @p call owns nothing, since destructors would run without the GIL.
template <class Call>
auto or_stop(const Call& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

/// What function(*arguments) returns.
inline nanobind::object call_python(nanobind::handle function, const nanobind::tuple& arguments) {
  PyObject* const result = or_stop([&] { return PyObject_CallObject(function.ptr(), arguments.ptr()); });
  if (result == nullptr) throw nanobind::python_error();
  return nanobind::steal(result);
}

/// Gives the GIL away for its lifetime.
class WithoutGil {
 public:
  WithoutGil() noexcept : state_(PyEval_SaveThread()) {}
  WithoutGil& operator=(WithoutGil&&) = delete;
  ~WithoutGil() {
    or_stop([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* const state_;
};

/// For functions that run without the GIL.
using Free = nanobind::call_guard<WithoutGil>;

// Calls that may wait long, from Python's main thread: Ctrl-C must end them, but libddp's waits know no signals.

/// Runs @p task without the GIL: on this thread, or where signals are handled on this one (Python's main thread) on
/// another, while this one looks for signals. What it throws is thrown here. After a signal whose handler throws
/// (KeyboardInterrupt), the exception leaves at once and the task ends on its own, so it must own all that it uses, and
/// no Python object.
void run_interruptibly(std::function<void()> task);

/// The same for what may have a result.
template <class Function>
auto interruptible(Function function) {
  using Result = std::invoke_result_t<Function>;
  if constexpr (std::is_void_v<Result>) {
    run_interruptibly(std::move(function));
  } else {
    auto result = std::make_shared<std::optional<Result>>();
    run_interruptibly([result, function = std::move(function)]() mutable { result->emplace(function()); });
    return std::move(**result);
  }
}

// What one call at a time may use, although calls may go on when Ctrl-C has ended them for Python.

/// A shared handle to a T. Copies are the same T.
template <class T>
class Exclusive {
 public:
  template <class... Arguments>
  explicit Exclusive(std::in_place_t, Arguments&&... arguments)
      : state_(std::make_shared<State>(std::forward<Arguments>(arguments)...)) {}

  /// Calls @p function with it. Throws Error(unavailable) while another call has it: never waits, so that the GIL may
  /// be held.
  template <class Function>
  auto use(const char* attempted, Function function) const {
    const std::unique_lock lock(state_->calls, std::try_to_lock);
    if (lock) return function(state_->value);
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = attempted,
                 .cause = "another call to the same object is still under way",
                 .hint = "use it from one thread, and not after Ctrl-C has ended a call"}};
  }
  /// For what is safe at any time.
  T& shared() const noexcept { return state_->value; }

 private:
  struct State {
    template <class... Arguments>
    explicit State(Arguments&&... arguments) : value(std::forward<Arguments>(arguments)...) {}
    std::mutex calls;
    T value;
  };
  std::shared_ptr<State> state_;
};

}  // namespace ddp::python
