// ddp::torch's GradientAverager as a Python object: what libddp.torch.DistributedDataParallel is made of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>

#include <ddp/join.hpp>
#include <ddp/wait_watch.hpp>

#include <ddp/torch/c10d_backend.hpp>
#include <ddp/torch/gradient_averager.hpp>

#include "signals.hpp"
#include "torch_hook.hpp"

namespace ddp_adapter {

namespace binding = ddp::torch;

/// That of a backend "ddp". Throws for another.
inline ddp::ProcessGroup group_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  if (auto* const ours = dynamic_cast<binding::C10dBackend*>(backend.get())) return ours->process_group();
  binding::throw_invalid_argument("averaging gradients over a process group",
                                  "its backend is " + backend->getBackendName(), "give one of the backend ddp");
}

using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

inline std::vector<binding::NamedTensor> named(const Names& names, const Tensors& tensors) {
  std::vector<binding::NamedTensor> all;
  for (std::size_t i = 0; i < names.size(); ++i) all.push_back({names[i], tensors[i]});
  return all;
}

/// One at a time for each object of Python; ends with its `with` block.
struct Held {
  std::shared_ptr<binding::GradientAverager> averager;
  bool several = false;  ///< backward passes, else no_sync
  std::optional<binding::GradientAverager::Guard> guard;

  void enter() { guard.emplace(several ? averager->several_backwards() : averager->no_sync()); }
  void leave() { guard.reset(); }
};

/// The forward pass of mixed precision, in its `with` block.
struct HeldLow {
  explicit HeldLow(std::shared_ptr<binding::GradientAverager> of) : averager(std::move(of)) {}

  std::shared_ptr<binding::GradientAverager> averager;
  std::unique_ptr<binding::LowPrecisionParameters::Hold> hold;

  void enter() { hold.reset(new binding::LowPrecisionParameters::Hold(averager->hold_low())); }
  void leave() { hold.reset(); }
};

/// By its own `with` block; or by torch's Join, which calls enter() and, for a rank that has run out, shadow_step() and
/// end(). One that is dropped takes no part any more.
struct HeldJoin {
  HeldJoin(std::shared_ptr<binding::GradientAverager> of, Tensors all, ddp::JoinOptions how)
      : averager(std::move(of)), buffers(std::move(all)), options(how) {}
  HeldJoin(const HeldJoin&) = delete;
  HeldJoin& operator=(const HeldJoin&) = delete;
  ~HeldJoin() { abandon(); }

  std::shared_ptr<binding::GradientAverager> averager;
  Tensors buffers;
  ddp::JoinOptions options;
  std::unique_ptr<ddp::Join> join;

  void enter() {
    averager->check_parameters_stayed("joining ranks with inputs of different length");
    std::vector<ddp::TensorView> memory;
    for (const at::Tensor& buffer : buffers) memory.push_back(binding::bytes_of(buffer, "joining ranks with a buffer"));
    join = std::make_unique<ddp::Join>(std::vector<ddp::Joinable*>{&averager->reducer().joinable(std::move(memory))},
                                       options);
  }
  /// Runs the steps of ranks that still have inputs, unless the program's block has failed.
  void leave(bool failed) {
    if (failed) return abandon();
    const ddp::WaitWatch watch(&look_for_signals);
    const auto abandoned = std::move(join);
    abandoned->finish();
  }
  void shadow_step() const {
    const ddp::WaitWatch watch(&look_for_signals);
    if (join->shadow_step() == ddp::JoinEvent::step) averager->take_step_of_others();
  }
  void end() const {
    const ddp::WaitWatch watch(&look_for_signals);
    join->end();
  }
  /// Not by an exception that ~Join sees: it is Python's.
  void abandon() {
    if (join) join->abandon();
    join = nullptr;
  }
};

/// Python's handle. The engine is shared with hooks that run.
class Averager {
 public:
  /// @param sparse by tensor: its gradient is
  Averager(const Names& names, const Tensors& tensors, const std::vector<bool>& sparse,
           const c10::intrusive_ptr<c10d::Backend>& backend, ddp::ReducerOptions options,
           std::optional<at::ScalarType> compute_type) {
    auto all = named(names, tensors);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].sparse = sparse[i];
    const ddp::WaitWatch watch(&look_for_signals);
    engine_ = std::make_shared<binding::GradientAverager>(std::move(all), group_of(backend), std::move(options),
                                                          compute_type);
  }

  const std::shared_ptr<binding::GradientAverager>& engine() const { return engine_; }

  void before_forward() const {
    const ddp::WaitWatch watch(&look_for_signals);
    engine_->before_forward();
    engine_->reducer().start_forward();
  }
  /// @param synchronize what require_backward_grad_sync says
  void after_forward(const Tensors& outputs, bool complete, bool synchronize) const {
    std::optional<binding::GradientAverager::Guard> alone;
    if (!synchronize) alone.emplace(engine_->no_sync());
    engine_->after_forward(outputs, complete);
  }
  void broadcast_buffers(const Names& names, const Tensors& buffers) const {
    const ddp::WaitWatch watch(&look_for_signals);
    engine_->broadcast_buffers(named(names, buffers));
  }
  void change_group(const c10::intrusive_ptr<c10d::Backend>& backend) const {
    const ddp::WaitWatch watch(&look_for_signals);
    engine_->change_group(group_of(backend));
  }

 private:
  std::shared_ptr<binding::GradientAverager> engine_;
};

/// A hook for Averager's options: Python's function, or torch's own by number.
inline std::shared_ptr<ddp::CommHook> python_hook(const std::string& name, py::object state, py::object function,
                                                  Tensors tensors) {
  return std::make_shared<TorchHook>(
      name, std::make_unique<c10d::PythonCommHook>(std::move(state), std::move(function)), std::move(tensors));
}

inline ddp::ReducerOptions options_of(std::optional<std::size_t> cap, std::size_t first, std::vector<std::size_t> caps,
                                      bool broadcast, bool view, bool find_unused, bool static_graph, bool skip_unused,
                                      std::vector<std::size_t> delayed, std::optional<std::size_t> delayed_behind,
                                      std::optional<at::ScalarType> reduce, std::shared_ptr<ddp::CommHook> hook,
                                      ddp::DdpLogOptions log) {
  return {.bucket_cap_bytes = cap,
          .first_bucket_bytes = first,
          .bucket_caps_bytes = std::move(caps),
          .rebuild_buckets = true,
          .broadcast_parameters = broadcast,
          .gradient_as_bucket_view = view,
          .find_unused_parameters = find_unused,
          .static_graph = static_graph,
          .skip_all_reduce_unused = skip_unused,
          .delayed = std::move(delayed),
          .delayed_behind = delayed_behind,
          .reduce_dtype = reduce ? binding::dtype_of(*reduce) : std::nullopt,
          .comm_hook = std::move(hook),
          .log = std::move(log)};
}

inline void add_averager(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  py::class_<ddp::CommHook, std::shared_ptr<ddp::CommHook>>(module, "CommHook");
  module.def("python_hook", &python_hook);
  module.def("compress_hook", [](const std::string& type) {
    return ddp::compress_hook(type == "bfloat16" ? ddp::DType::bfloat16 : ddp::DType::float16);
  });
  module.def("all_reduce_hook", &ddp::all_reduce_hook);
  module.def("cast_buffers", [](const Names& names, const Tensors& tensors, at::ScalarType type) {
    binding::cast_buffers(named(names, tensors), type);
  });

  py::class_<Held>(module, "Held").def("__enter__", &Held::enter).def("__exit__", [](Held& held, const py::args&) {
    held.leave();
  });
  py::class_<HeldLow, std::shared_ptr<HeldLow>>(module, "HeldLow")
      .def("__enter__", &HeldLow::enter)
      .def("__exit__", [](HeldLow& held, const py::args&) { held.leave(); });
  py::class_<HeldJoin>(module, "HeldJoin")
      .def("__enter__", &HeldJoin::enter, Release())
      .def("__exit__",
           [](HeldJoin& held, const py::object& type, const py::object&, const py::object&) {
             const bool failed = !type.is_none();
             const py::gil_scoped_release released;
             held.leave(failed);
           })
      .def("shadow_step", &HeldJoin::shadow_step, Release())
      .def("end", &HeldJoin::end, Release())
      .def("abandon", &HeldJoin::abandon);

  py::class_<Averager>(module, "Averager")
      .def(py::init([](const Names& names, const Tensors& tensors, const std::vector<bool>& sparse,
                       const c10::intrusive_ptr<c10d::Backend>& backend, std::optional<std::size_t> cap,
                       std::size_t first, std::vector<std::size_t> caps, bool broadcast, bool view, bool find_unused,
                       bool static_graph, bool skip_unused, std::vector<std::size_t> delayed,
                       std::optional<std::size_t> delayed_behind, std::shared_ptr<ddp::CommHook> hook,
                       std::string module_name, bool broadcast_buffers, std::uint64_t sample_rate, bool find_straggler,
                       std::optional<at::ScalarType> compute, std::optional<at::ScalarType> reduce) {
             auto options = options_of(cap, first, std::move(caps), broadcast, view, find_unused, static_graph,
                                       skip_unused, std::move(delayed), delayed_behind, reduce, std::move(hook),
                                       {.sample_rate = sample_rate,
                                        .find_straggler = find_straggler,
                                        .module_name = std::move(module_name),
                                        .broadcast_buffers = broadcast_buffers});
             const py::gil_scoped_release released;
             return std::make_unique<Averager>(names, tensors, sparse, backend, std::move(options), compute);
           }),
           py::arg("names"), py::arg("tensors"), py::arg("sparse"), py::arg("backend"), py::arg("cap"),
           py::arg("first"), py::arg("caps"), py::arg("broadcast"), py::arg("view"), py::arg("find_unused"),
           py::arg("static_graph"), py::arg("skip_unused"), py::arg("delayed"), py::arg("delayed_behind"),
           py::arg("hook"), py::arg("module_name"), py::arg("broadcast_buffers"), py::arg("sample_rate"),
           py::arg("find_straggler"), py::arg("compute"), py::arg("reduce"))
      .def("recomputes", [](const Averager& averager) { return averager.engine()->recomputes(); })
      .def("takes_part", [](const Averager& averager) { return averager.engine()->takes_part(); })
      .def("repeats", [](const Averager& averager) { return averager.engine()->repeats(); })
      .def("before_forward", &Averager::before_forward, Release())
      .def("after_forward", &Averager::after_forward, Release())
      .def("broadcast_buffers", &Averager::broadcast_buffers, Release())
      .def("change_group", &Averager::change_group, Release())
      .def("no_sync",
           [](const Averager& averager) {
             return Held{averager.engine(), false, {}};
           })
      .def("several_backwards",
           [](const Averager& averager) {
             return Held{averager.engine(), true, {}};
           })
      .def("join",
           [](const Averager& averager, Tensors buffers, bool divide, bool throws) {
             return std::make_unique<HeldJoin>(
                 averager.engine(), std::move(buffers),
                 ddp::JoinOptions{
                     .divide_by_initial_world_size = divide, .throw_on_early_termination = throws, .enable = true});
           })
      .def("drop_gradients",
           [](const Averager& averager, std::vector<std::size_t> parameters) {
             averager.engine()->drop_gradients(std::move(parameters));
           })
      .def("hold_low", [](const Averager& averager) { return std::make_shared<HeldLow>(averager.engine()); })
      .def("trace", [](const Averager& averager, std::size_t steps) { averager.engine()->reducer().trace(steps); })
      .def("trace_json", [](const Averager& averager) { return averager.engine()->reducer().trace_json(); })
      .def("log", [](const Averager& averager) { return ddp::to_json(averager.engine()->reducer().log()); })
      .def("buckets", [](const Averager& averager) { return averager.engine()->reducer().buckets(); })
      .def("ready_order", [](const Averager& averager) { return averager.engine()->reducer().ready_order(); });
}

}  // namespace ddp_adapter
