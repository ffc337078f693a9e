// ddp::torch's GradientAverager as a Python object, the engine of libddp.torch.DistributedDataParallel.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>

#include <ddp/comm_hook.hpp>
#include <ddp/comm_hooks.hpp>
#include <ddp/join.hpp>
#include <ddp/torch/c10d_backend.hpp>
#include <ddp/torch/device_streams.hpp>
#include <ddp/torch/gradient_averager.hpp>
#include <ddp/torch/module_tensors.hpp>
#include <ddp/wait_watch.hpp>

#include "signals.hpp"

namespace ddp_adapter {

// torch.distributed's communication hooks, in Python or built in, as libddp's. A hook may start operations when others
// end (PowerSGD does), so it gets a bucket only after the previous one has ended: all ranks start all operations in one
// order.

class TorchHook final : public ddp::CommHook, public std::enable_shared_from_this<TorchHook> {
 public:
  /// @param name compared among ranks; @param tensors of the Reducer, in its order
  TorchHook(std::string name, std::unique_ptr<c10d::CommHookInterface> hook, std::vector<at::Tensor> tensors)
      : name_(std::move(name)), hook_(std::move(hook)), tensors_(std::move(tensors)) {}

  std::string name() const override { return name_; }
  bool serves_cuda() const override { return true; }

  ddp::BucketExchange start(const ddp::GradientBucket& bucket, ddp::ProcessGroup& /*group*/) override {
    const at::AutoGradMode no_grad(false);
    at::Tensor buffer = memory_of(bucket);
    follow(bucket, buffer);
    const auto exchange = std::make_shared<Exchange>(bucket_for_hook(bucket, buffer));
    const FuturePointer before = std::exchange(last_, bucket.is_last ? nullptr : exchange->ended);
    if (bucket.index == 0 || !before) {
      run(*exchange);
    } else {
      before->addCallback([self = shared_from_this(), exchange](Future& previous) {
        if (previous.hasError()) return exchange->ended->setError(previous.exception_ptr());
        try {
          self->run(*exchange);
        } catch (...) {
          exchange->ended->setError(std::current_exception());
        }
      });
    }
    return [this, exchange, buffer, executor = bucket.executor]() mutable {
      const at::AutoGradMode no_grad_either(false);
      wait_for(exchange->ended);
      const c10::OptionalStreamGuard in_stream(stream_);
      exchange->result->waitAndThrow();  // on a device, the stream does
      const at::Tensor result = hook_->parseHookResult(exchange->result->value());
      if (result.data_ptr() != buffer.data_ptr()) buffer.copy_(result.view(buffer.sizes()));
      if (!stream_) return;
      ddp::torch::keep_for(*stream_, result);
      executor->wait_for(executor->now_in(ddp::torch::stream_of(*stream_)));
    };
  }

 private:
  using Future = c10::ivalue::Future;
  using FuturePointer = c10::intrusive_ptr<Future>;

  struct Exchange {
    explicit Exchange(c10d::GradBucket lent) : bucket(std::move(lent)) {}

    c10d::GradBucket bucket;
    FuturePointer ended = c10::make_intrusive<Future>(c10::NoneType::get());
    FuturePointer result;  ///< the hook's own, which knows its streams; set before `ended` completes
  };

  /// On a device, hooks run in one stream of their own: they delay neither the backward pass nor other buckets' copies,
  /// and the state that they keep from step to step stays in order.
  void follow(const ddp::GradientBucket& bucket, const at::Tensor& buffer) {
    const auto device = ddp::torch::cuda_device_of(buffer);
    if (!device) return;
    if (!stream_) stream_ = ddp::torch::side_stream(*device);
    bucket.executor->hold_back(ddp::torch::stream_of(*stream_));
  }

  c10d::GradBucket bucket_for_hook(const ddp::GradientBucket& bucket, const at::Tensor& buffer) const {
    std::vector<std::size_t> offsets, lengths;
    std::vector<c10::IntArrayRef> sizes;
    std::vector<at::Tensor> parameters;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto* const begin = static_cast<const std::byte*>(bucket.buffer.data());
      const auto* const place = static_cast<const std::byte*>(bucket.gradients[i].data());
      offsets.push_back(static_cast<std::size_t>(place - begin) / buffer.element_size());
      lengths.push_back(bucket.gradients[i].numel());
      parameters.push_back(tensors_[bucket.parameters[i]]);
      sizes.push_back(parameters.back().sizes());
    }
    const std::size_t count = bucket.index + (bucket.is_last ? 1 : 2);
    return c10d::GradBucket(bucket.index, count, buffer, std::move(offsets), std::move(lengths), std::move(sizes),
                            std::move(parameters), std::nullopt);
  }

  void run(Exchange& exchange) {
    const at::AutoGradMode no_grad(false);
    const c10::OptionalStreamGuard in_stream(stream_);
    exchange.result = hook_->runHook(exchange.bucket);
    constexpr bool kUsesValue = false;  // nor its streams
    exchange.result->addCallback(
        [ended = exchange.ended](Future& future) {
          if (future.hasError()) return ended->setError(future.exception_ptr());
          ended->markCompleted();
        },
        kUsesValue);
  }

  /// Ctrl-C ends the wait; the hook continues.
  static void wait_for(const FuturePointer& ended) {
    if (ended->completed()) return ended->waitAndThrow();
    // its captures may be Python objects
    const std::shared_ptr<Future> kept(ended.get(), [owner = ended](Future*) mutable {
      ddp::torch::hand_over([last = std::move(owner)]() mutable { last.reset(); });
    });
    ddp::torch::interruptible([kept] { kept->waitAndThrow(); });
  }

  static at::Tensor memory_of(const ddp::GradientBucket& bucket) {
    const ddp::Device place = bucket.buffer.device();
    const at::Device device = place.type == ddp::DeviceType::cuda
                                  ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.index))
                                  : at::Device(at::kCPU);
    return at::from_blob(
        bucket.buffer.data(), {static_cast<std::int64_t>(bucket.buffer.numel())}, [memory = bucket.memory](void*) {},
        at::TensorOptions(device).dtype(type_of(bucket.buffer.dtype())), device);
  }
  static at::ScalarType type_of(ddp::DType type) {
    switch (type) {
      case ddp::DType::float64: return at::kDouble;
      case ddp::DType::float16: return at::kHalf;
      case ddp::DType::bfloat16: return at::kBFloat16;
      default: return at::kFloat;  // gradients have only these types
    }
  }

  const std::string name_;
  const std::unique_ptr<c10d::CommHookInterface> hook_;
  const std::vector<at::Tensor> tensors_;
  FuturePointer last_;                 ///< of the previous bucket in this step
  std::optional<c10::Stream> stream_;  ///< where hooks run on a device
};

namespace binding = ddp::torch;

/// The group of a backend "ddp". Throws for another backend.
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

/// One at a time per Python object; ends with its `with` block.
struct Held {
  std::shared_ptr<binding::GradientAverager> averager;
  bool several = false;  ///< several_backwards() instead of no_sync()
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

/// Turns an error in a backward pass whose gradients an optimizer averages into HorovodInternalError.
void leave_backward_of_optimizer(const ddp::Error& error);

/// Driven by its own `with` block, or by torch's Join, which calls enter() and, for a rank that has run out of inputs,
/// shadow_step() and end(). A dropped one takes no further part.
struct HeldJoin {
  HeldJoin(std::shared_ptr<binding::GradientAverager> of, Tensors all, ddp::JoinOptions how)
      : averager(std::move(of)), buffers(std::move(all)), options(how) {}
  HeldJoin& operator=(HeldJoin&&) = delete;
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
  /// Explicit, since ~Join does not see Python's exceptions.
  void abandon() {
    if (join) join->abandon();
    join = nullptr;
  }
};

/// The Python object. Hooks that run share the engine.
class Averager {
 public:
  /// @param sparse for each tensor, whether its gradient is sparse
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
  /// @param synchronize require_backward_grad_sync
  void after_forward(const Tensors& outputs, bool complete, bool synchronize) const {
    std::optional<binding::GradientAverager::Guard> alone;
    if (!synchronize) alone.emplace(engine_->no_sync());
    engine_->after_forward(outputs, complete);
  }
  void broadcast_buffers(const Names& names, const Tensors& buffers) const {
    const ddp::WaitWatch watch(&look_for_signals);
    engine_->broadcast_buffers(named(names, buffers));
  }
  bool restart_passes() const {
    const ddp::WaitWatch watch(&look_for_signals);
    return engine_->restart_passes();
  }
  void exchange_accumulated() const {
    const ddp::WaitWatch watch(&look_for_signals);
    engine_->exchange_accumulated();
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
                                      bool write_unused, std::vector<std::size_t> delayed,
                                      std::optional<std::size_t> delayed_behind, std::optional<at::ScalarType> reduce,
                                      std::shared_ptr<ddp::CommHook> hook, ddp::DdpLogOptions log) {
  return {.bucket_cap_bytes = cap,
          .first_bucket_bytes = first,
          .bucket_caps_bytes = std::move(caps),
          .rebuild_buckets = true,
          .broadcast_parameters = broadcast,
          .gradient_as_bucket_view = view,
          .find_unused_parameters = find_unused,
          .static_graph = static_graph,
          .skip_all_reduce_unused = skip_unused,
          .write_unused = write_unused,
          .delayed = std::move(delayed),
          .delayed_behind = delayed_behind,
          .reduce_dtype = reduce ? binding::dtype_of(*reduce) : std::nullopt,
          .comm_hook = std::move(hook),
          .log = std::move(log)};
}

inline void add_comm_hooks(py::module_& module) {
  py::class_<ddp::CommHook, std::shared_ptr<ddp::CommHook>>(module, "CommHook")
      .def("needs_all_parameters", &ddp::CommHook::needs_all_parameters);
  module.def("python_hook", &python_hook);
  module.def("compress_hook", [](const std::string& type) {
    return ddp::compress_hook(type == "bfloat16" ? ddp::DType::bfloat16 : ddp::DType::float16);
  });
  module.def("all_reduce_hook", &ddp::all_reduce_hook);
  module.def("reduce_hook", [](const std::string& name) {
    for (const auto op : {ddp::ReduceOp::sum, ddp::ReduceOp::min, ddp::ReduceOp::max, ddp::ReduceOp::product}) {
      if (name == to_string(op)) return ddp::reduce_hook(op);
    }
    return ddp::all_reduce_hook();
  });
  module.def("exact_average_hook", &ddp::exact_average_hook);
  module.def("power_sgd_hook", [](int rank, std::uint64_t start, double rate, bool feedback, bool warm, float epsilon,
                                  std::uint64_t seed) {
    return ddp::power_sgd_hook({.rank = rank,
                                .start_iteration = start,
                                .min_compression_rate = rate,
                                .error_feedback = feedback,
                                .warm_start = warm,
                                .orthogonalization_epsilon = epsilon,
                                .seed = seed});
  });
  module.def("quantize_hook", [](bool per_channel) {
    return per_channel ? ddp::quantize_per_channel_hook() : ddp::quantize_per_tensor_hook();
  });
}

inline void add_held(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
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
}

inline void add_averager(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  add_comm_hooks(module);
  add_held(module);
  module.def("cast_buffers", [](const Names& names, const Tensors& tensors, at::ScalarType type) {
    binding::cast_buffers(named(names, tensors), type);
  });
  py::class_<Averager>(module, "Averager")
      .def(py::init([](const Names& names, const Tensors& tensors, const std::vector<bool>& sparse,
                       const c10::intrusive_ptr<c10d::Backend>& backend, std::optional<std::size_t> cap,
                       std::size_t first, std::vector<std::size_t> caps, bool broadcast, bool view, bool find_unused,
                       bool static_graph, bool skip_unused, bool write_unused, std::vector<std::size_t> delayed,
                       std::optional<std::size_t> delayed_behind, std::shared_ptr<ddp::CommHook> hook,
                       std::string module_name, bool broadcast_buffers, std::uint64_t sample_rate, bool find_straggler,
                       std::optional<at::ScalarType> compute, std::optional<at::ScalarType> reduce) {
             auto options =
                 options_of(cap, first, std::move(caps), broadcast, view, find_unused, static_graph, skip_unused,
                            write_unused, std::move(delayed), delayed_behind, reduce, std::move(hook),
                            {.sample_rate = sample_rate,
                             .find_straggler = find_straggler,
                             .module_name = std::move(module_name),
                             .broadcast_buffers = broadcast_buffers});
             const py::gil_scoped_release released;
             return std::make_unique<Averager>(names, tensors, sparse, backend, std::move(options), compute);
           }),
           py::arg("names"), py::arg("tensors"), py::arg("sparse"), py::arg("backend"), py::arg("cap"),
           py::arg("first"), py::arg("caps"), py::arg("broadcast"), py::arg("view"), py::arg("find_unused"),
           py::arg("static_graph"), py::arg("skip_unused"), py::arg("write_unused"), py::arg("delayed"),
           py::arg("delayed_behind"), py::arg("hook"), py::arg("module_name"), py::arg("broadcast_buffers"),
           py::arg("sample_rate"), py::arg("find_straggler"), py::arg("compute"), py::arg("reduce"))
      .def("recomputes", [](const Averager& averager) { return averager.engine()->recomputes(); })
      .def("takes_part", [](const Averager& averager) { return averager.engine()->takes_part(); })
      .def("repeats", [](const Averager& averager) { return averager.engine()->repeats(); })
      .def("before_forward", &Averager::before_forward, Release())
      .def("after_forward", &Averager::after_forward, Release())
      .def("broadcast_buffers", &Averager::broadcast_buffers, Release())
      .def("change_group", &Averager::change_group, Release())
      .def("begin_by_gradients",
           [](const Averager& averager, std::uint64_t passes, bool adds_up) {
             averager.engine()->begin_by_gradients(passes, adds_up, &leave_backward_of_optimizer);
           })
      .def("forget_exchanged", [](const Averager& averager) { averager.engine()->forget_exchanged(); })
      .def("restart_passes", &Averager::restart_passes, Release())
      .def("exchange_accumulated", &Averager::exchange_accumulated, Release())
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
