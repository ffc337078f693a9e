// The extension module that connects libddp.torch to PyTorch: a c10d backend, and the engine of
// DistributedDataParallel. Compiled on the user's machine for the installed PyTorch, whose C++ interface has no stable
// ABI (_adapter.py).
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/autograd/context/context.h>
#include <torch/csrc/utils/pybind.h>

#include <ddp/error.hpp>
#include <ddp/process_group.hpp>
#include <ddp/sealed_store.hpp>

#include <ddp/torch/c10d_backend.hpp>
#include <ddp/torch/gradient_averager.hpp>

#include "averager.hpp"
#include "python_tasks.hpp"
#include "signals.hpp"
#include "storage_size.hpp"

namespace ddp_adapter {
namespace {

/// Sets Python's error to libddp's own exception, or Horovod's.
void set_error(const ddp::Error& error, bool of_horovod = false) {
  try {
    py::object exception =
        py::module_::import("libddp._errors")
            .attr("make")(std::string(to_string(error.code())), std::string(error.what()), error.attempted(),
                          error.cause(), error.native(), py::tuple(py::cast(error.ranks())), error.hint());
    if (of_horovod)
      exception = py::module_::import("libddp.horovod.exceptions").attr("HorovodInternalError").attr("of")(exception);
    PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
  } catch (py::error_already_set& instead) {
    instead.restore();
  }
}

/// Also where PyTorch's bindings meet one.
void translate(std::exception_ptr problem) {
  try {
    if (problem) std::rethrow_exception(std::move(problem));
  } catch (const ddp::Error& error) {
    set_error(error);
  }
}

[[noreturn]] void leave_with_error() {
  python_error exception;
  exception.persist();
  throw exception;
}

/// As PyTorch passes exceptions of Python's through its engine, which makes a RuntimeError of others.
void leave_backward(const ddp::Error& error) {
  const py::gil_scoped_acquire gil;
  set_error(error);
  leave_with_error();
}

bool gradient_goes_to_context() {
  return torch::distributed::autograd::ThreadLocalDistAutogradContext::getContextPtr() != nullptr;
}

/// The device that the program has chosen for this thread: not the first, which it may not have chosen.
std::optional<int> chosen_device() {
  const auto index = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice().index();
  return index > 0 ? std::optional<int>(index) : std::nullopt;
}

/// @param own what rank 0 names the group
/// @param label begins the group's name
/// @param cuda whether CUDA tensors will come; where this PyTorch has none, they do not
/// @param device of this rank, if it is known
/// @param secret of the ranks, for all that they say over the store; empty: nothing is sealed
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                               const std::string& label, const std::string& own,
                                               const std::vector<int>& global_ranks, std::int64_t timeout_ms, bool cuda,
                                               std::optional<int> device, const std::string& secret) {
  const std::chrono::milliseconds timeout{timeout_ms};
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) cuda = false;
  // A PyTorch with CUDA asks in vain where there is no driver; the group then says so to who brings a CUDA tensor.
  if (cuda && !device && c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() > 0) device = chosen_device();
  const auto made = std::make_shared<std::optional<ddp::ProcessGroup>>();
  ddp::torch::interruptible([=] {
    if (rank == 0) store->set("name", own);
    store->wait({"name"}, timeout);
    const std::string name = label + store->get_to_str("name");
    std::unique_ptr<ddp::KeyValueStore> meeting = std::make_unique<binding::C10dStore>(store, rank, size);
    if (!secret.empty()) meeting = ddp::sealed_store(std::move(meeting), std::as_bytes(std::span{secret}), name);
    *made = ddp::make_process_group(std::move(meeting), {.name = name,
                                                         .global_ranks = global_ranks,
                                                         .timeout = timeout,
                                                         .backend = cuda ? "auto" : "host",
                                                         .device = device});
  });
  auto backend = c10::make_intrusive<binding::C10dBackend>(*std::move(*made));
  backend->setTimeout(timeout);
  return backend;
}

/// The index of the CUDA device whose tensors a backend takes, if there is one.
std::optional<int> cuda_device_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto device = group_of(backend).cuda_device();
  return device ? std::optional<int>(device->index) : std::nullopt;
}

}  // namespace

void leave_backward_of_optimizer(const ddp::Error& error) {
  const py::gil_scoped_acquire gil;
  set_error(error,
            error.code() != ddp::ErrorCode::invalid_argument);  // of the program, which trying again does not mend
  leave_with_error();
}
}  // namespace ddp_adapter

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace ddp_adapter;
  using Release = py::call_guard<py::gil_scoped_release>;
  py::register_exception_translator(translate);
  PythonTasks::start();
  ddp::torch::hand_over_to = &PythonTasks::take;
  ddp::torch::translate_error = &leave_backward;
  ddp::torch::look_in_backward = &look_for_signals_in_backward;
  ddp::torch::gradient_goes_to_context = &gradient_goes_to_context;
  ddp::torch::run_interruptibly = &run_interruptibly;
  module.def("start_tasks", &PythonTasks::start);
  module.def(
      "run_tasks", [] { PythonTasks::instance().run(); }, Release());
  module.def("stop_tasks", [] { PythonTasks::instance().stop(); });
  module.def("make_backend", &make_backend, Release(), py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("label"), py::arg("own"), py::arg("global_ranks"), py::arg("timeout_ms"), py::arg("cuda"),
             py::arg("device"), py::arg("secret"));
  module.def("cuda_device_of", &cuda_device_of);
  module.attr("storage_functions") = py::capsule(&kStorageFunctions, "libddp.storage_functions");
  add_averager(module);
}
