// libddp's operations that match by name, for libddp.horovod.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <ddp/named_operations.hpp>

#include "classes.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "tensor_argument.hpp"
#include "torch_adapter/call_apart.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// The last owner goes without the GIL: it ends a thread.
class PythonNamed {
 public:
  explicit PythonNamed(std::shared_ptr<NamedOperations> made) : named_(std::move(made)) {}
  PythonNamed(PythonNamed&&) = default;
  PythonNamed& operator=(PythonNamed&&) = default;
  ~PythonNamed() {
    const WithoutGil released;
    named_.reset();
  }
  NamedOperations* operator->() const { return named_.get(); }
  const std::shared_ptr<NamedOperations>& shared() const { return named_; }

 private:
  std::shared_ptr<NamedOperations> named_;
};

template <auto kFunction, class... Arguments>
auto call(PythonNamed& named, Arguments... arguments) {
  return ((*named.shared()).*kFunction)(std::move(arguments)...);
}

struct PythonHandle {
  NamedHandle handle;
};

/// What Horovod's reductions take, where they need not compute in another type.
constexpr std::array kReduced{DType::uint8,   DType::int8,     DType::int32,   DType::int64,
                              DType::float16, DType::bfloat16, DType::float32, DType::float64};

template <class Enum, std::size_t size>
Enum one_of(const std::array<Enum, size>& all, const std::string& name, const char* argument) {
  for (const Enum each : all) {
    if (name == to_string(each)) return each;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = std::string("using the argument ") + argument,
               .cause = "'" + name + "' is none of its values"}};
}

std::chrono::milliseconds seconds(double value) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(value));
}

PythonNamed make(PythonGroup& group, std::size_t fusion_bytes, double stall_check, double stall_shutdown) {
  const NamedOptions options{
      .fusion_bytes = fusion_bytes, .stall_check = seconds(stall_check), .stall_shutdown = seconds(stall_shutdown)};
  return PythonNamed(
      interruptible([parent = *group, options] { return std::make_shared<NamedOperations>(parent, options); }));
}

PythonHandle submit(PythonNamed& named, const std::string& kind, nb::bytes name, int set, const nb::iterable& tensors,
                    const std::string& op, int root, std::vector<std::int64_t> splits, bool on_gpu, double prescale,
                    double postscale, std::uint64_t number) {
  constexpr std::array kKinds{NamedKind::all_reduce, NamedKind::all_gather,     NamedKind::broadcast,
                              NamedKind::all_to_all, NamedKind::reduce_scatter, NamedKind::barrier};
  constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
  release_dropped_objects();
  TensorArguments arguments;
  NamedCall call{
      .kind = one_of(kKinds, kind, "kind"), .name = {name.c_str(), name.size()}, .number = number, .set = set};
  const bool writes = call.kind == NamedKind::all_reduce || call.kind == NamedKind::broadcast;
  for (const nb::handle tensor : tensors) {
    call.tensors.push_back(arguments.add(tensor, "tensors", writes ? Access::write : Access::read));
    arguments.fix(tensor);
  }
  call.op = one_of(kOps, op, "op");
  call.root = root;
  call.splits = std::move(splits);
  call.device = on_gpu ? DeviceType::cuda : DeviceType::cpu;
  call.prescale = prescale;
  call.postscale = postscale;
  call.keep_alive = arguments.owner();
  const WithoutGil released;
  return {named->submit(std::move(call))};
}

/// submit() of an all_reduce in place that needs nothing beside: of one tensor, with a name.
std::optional<PythonHandle> submit_plain(PythonNamed& named, nb::handle tensor, nb::handle name, nb::handle op,
                                         bool stays) {
  constexpr std::array kOps{ReduceOp::avg, ReduceOp::sum, ReduceOp::sum,
                            ReduceOp::min, ReduceOp::max, ReduceOp::product};
  constexpr std::size_t kAdasum = 2;
  if (PyUnicode_CheckExact(name.ptr()) == 0) return std::nullopt;
  std::size_t chosen = 0;
  if (!op.is_none()) {
    chosen = PyLong_CheckExact(op.ptr()) != 0 ? PyLong_AsSize_t(op.ptr()) : kOps.size();
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
    if (chosen >= kOps.size() || chosen == kAdasum) return std::nullopt;
  }
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name.ptr(), &length);
  if (text == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  release_dropped_objects();
  TensorArguments arguments;
  std::optional<TensorView> view = arguments.add_plain(tensor, stays);
  if (!view || std::ranges::find(kReduced, view->dtype()) == kReduced.end()) return std::nullopt;
  NamedCall call{.kind = NamedKind::all_reduce, .name = {text, static_cast<std::size_t>(length)}};
  call.tensors.push_back(*std::move(view));
  call.op = kOps[chosen];
  call.keep_alive = arguments.owner();
  const WithoutGil released;
  return PythonHandle{named->submit(std::move(call))};
}

void wait(const PythonHandle& handle) {
  const auto ended = [&handle] {
    const WithoutGil released;
    return handle.handle.wait(Deadline::after(ddp_adapter::kSignalLook));
  };
  while (!ended()) {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  release_dropped_objects();
  if (const auto error = handle.handle.error()) throw Error{*error};
}

using Rows = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig>;

nb::list results(const PythonHandle& handle) {
  nb::list all;
  for (const NamedResult& result : handle.handle.results()) {
    auto owner = std::make_unique<std::shared_ptr<std::byte>>(result.memory);
    const nb::capsule capsule(owner.get(),
                              [](void* old) noexcept { delete static_cast<std::shared_ptr<std::byte>*>(old); });
    static_cast<void>(owner.release());
    const Rows bytes(reinterpret_cast<std::uint8_t*>(result.memory.get()), {result.bytes}, capsule);
    all.append(nb::make_tuple(bytes, result.rows));
  }
  return all;
}

nb::dict counts(const PythonNamed& named) {
  const NamedCounts all = named->counts();
  nb::dict made;
  made["negotiated"] = all.negotiated;
  made["learned"] = all.learned;
  made["fused"] = all.fused;
  made["messages"] = all.messages;
  made["wake_ups"] = all.wake_ups;
  return made;
}

constexpr std::chrono::seconds kLongest{10L * 365 * 24 * 3600};

}  // namespace

void add_named(nb::module_& module) {
  nb::class_<PythonHandle>(module, "NamedHandle", "A submitted operation of NamedOperations.")
      .def(
          "done", [](const PythonHandle& handle) { return handle.handle.done(); }, Free(),
          "Whether it has ended, successfully or not. Never blocks.")
      .def("wait", &wait, "Returns when it has ended; raises its error.")
      .def("results", &results, nb::sig("def results(self) -> list[tuple[typing.Any, list[int]]]"),
           "For all_gather, all_to_all and reduce_scatter: the bytes of each tensor's result (DLPack, uint8), and the "
           "rows that came from each rank.")
      .def("last_joined", [](const PythonHandle& handle) { return handle.handle.last_joined(); });
  nb::class_<PythonNamed>(module, "NamedOperations",
                          "Operations on CPU tensors that match by set, kind and name, in any order, from any thread.")
      .def(
          "__init__",
          [](PythonNamed* self, PythonGroup& group, std::size_t fusion_bytes, double stall_check,
             double stall_shutdown) { new (self) PythonNamed(make(group, fusion_bytes, stall_check, stall_shutdown)); },
          "group"_a, nb::kw_only(), "fusion_bytes"_a, "stall_check"_a, "stall_shutdown"_a,
          "Collective over the group. Seconds; 0: no report, and the group's timeout.")
      .def("submit", &submit, "kind"_a, "name"_a, "set"_a = 0, "tensors"_a = nb::make_tuple(), "op"_a = "sum",
           "root"_a = 0, "splits"_a = std::vector<std::int64_t>{}, "on_gpu"_a = false, "prescale"_a = 1.0,
           "postscale"_a = 1.0, "number"_a = 0,
           nb::sig("def submit(self, kind: str, name: bytes, set: int = 0, tensors: "
                   "collections.abc.Iterable[libddp._types.Tensor] = (), op: str = 'sum', root: int = 0, splits: "
                   "collections.abc.Sequence[int] = (), on_gpu: bool = False, prescale: float = 1.0, postscale: float "
                   "= 1.0, number: int = 0) -> NamedHandle"))
      .def("all_reduce", &submit_plain, "tensor"_a, "name"_a.none(), "op"_a.none(), "stays"_a,
           nb::sig("def all_reduce(self, tensor: typing.Any, name: str | None, op: int | None, stays: bool) -> "
                   "NamedHandle | None"),
           "submit() of an all_reduce in place of one of PyTorch's tensors, op by Horovod's number; None: it needs "
           "more than "
           "that, or is wrong. stays: the caller keeps the tensor meanwhile, but might resize it.")
      .def(
          "join", [](PythonNamed& named) { return PythonHandle{named->join()}; }, Free())
      .def(
          "add_set",
          [](PythonNamed& named, const std::vector<int>& ranks) {
            return interruptible(
                [shared = named.shared(), ranks] { return shared->add_set(ranks, Deadline::after(kLongest)); });
          },
          "ranks"_a, "Collective over all ranks.")
      .def(
          "remove_set",
          [](PythonNamed& named, int number) {
            interruptible([shared = named.shared(), number] { shared->remove_set(number, Deadline::after(kLongest)); });
          },
          "number"_a, "Collective over all ranks.")
      .def("shutdown", &call<&NamedOperations::shutdown>, Free())
      .def("start_timeline", &call<&NamedOperations::start_timeline, std::string, bool, bool>, Free(), "file"_a,
           "mark_exchanges"_a = false, "essential"_a = false)
      .def("stop_timeline", &call<&NamedOperations::stop_timeline>, Free())
      .def("recording", &call<&NamedOperations::recording>, Free())
      .def("record", &call<&NamedOperations::record, std::string, std::int64_t, std::int64_t, std::int64_t>, Free())
      .def("counts", &counts, nb::sig("def counts(self) -> dict[str, int]"));
}

}  // namespace ddp::python
