#include "interpreter.hpp"

#include "torch_adapter/call_apart.hpp"

namespace ddp::python {

void run_interruptibly(std::function<void()> task) {
  if (::gettid() != ::getpid()) {
    const WithoutGil released;
    return task();
  }
  const auto call = ddp_adapter::CallApart::start(std::move(task));
  const auto ended = [&call] {
    const WithoutGil released;
    return call->ended_within(ddp_adapter::kSignalLook);
  };
  while (!ended()) {
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
  call->check();
}

}  // namespace ddp::python
