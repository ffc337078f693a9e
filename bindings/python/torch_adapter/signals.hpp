// Ctrl-C while a call waits in C++: the main thread of the program looks for signals meanwhile, as its waits for
// libddp's operations allow (WaitWatch), or while a thread of its own waits.
#pragma once

#include <unistd.h>

#include <functional>
#include <utility>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "call_apart.hpp"

namespace ddp_adapter {

/// For WaitWatch. Throws KeyboardInterrupt, or what a signal's handler has raised.
inline void look_for_signals() {
  if (::gettid() != ::getpid()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// The same in a backward pass, through which PyTorch passes exceptions of this class as they are.
inline void look_for_signals_in_backward() {
  if (::gettid() != ::getpid()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error exception;
  exception.persist();
  throw exception;
}

/// Without the GIL. Throws KeyboardInterrupt, or what a signal's handler has raised. Only the main thread runs
/// handlers.
inline void run_interruptibly(std::function<void()> wait) {
  if (::gettid() != ::getpid()) return wait();
  const auto call = CallApart::start(std::move(wait));
  while (!call->ended_within(kSignalLook)) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  call->check();
}

}  // namespace ddp_adapter
