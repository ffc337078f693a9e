// Python's lock in threads that the interpreter may leave behind. Before Python 3.14, one that wants the GIL after the
// interpreter's end is ended by pthread_exit, and where that unwinds into a destructor or another noexcept function, of
// which nanobind is full, it aborts the process (https://docs.python.org/3/c-api/init.html, PyEval_RestoreThread).
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <nanobind/nanobind.h>

namespace ddp::python {

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
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    or_stop([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* const state_;
};

}  // namespace ddp::python
