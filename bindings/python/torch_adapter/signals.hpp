// Ctrl-C while a call of torch.distributed waits in C++: the wait goes on in a thread of its own, the main thread of
// the program looks for signals.
#pragma once

#include <unistd.h>

#include <functional>
#include <utility>

#include <torch/csrc/utils/pybind.h>

#include "call_apart.hpp"

namespace ddp_adapter {

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
