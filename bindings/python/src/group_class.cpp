// libddp.ProcessGroup: ddp::ProcessGroup on Python's tensors.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/broadcast_state.hpp>
#include <ddp/object_collectives.hpp>

#include "classes.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "tensor_argument.hpp"

#define DDP_LIMIT ", timeout: float | datetime.timedelta | None = None"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using StreamArgument = std::optional<std::uintptr_t>;

/// Time after an operation's deadline, by which its group must have ended it, until a hanging backend is given up.
constexpr std::chrono::seconds kSlack{30};

/// An argument as libddp takes it.
ReduceOp native(const std::string& name) {
  for (const auto op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    if (name == to_string(op)) return op;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "using the argument op",
               .cause = "'" + name + "' is not a reduction",
               .hint = "reductions are sum, avg, min, max and product"}};
}
template <class Value>
const Value& native(const Value& value) {
  return value;
}

/// Starts an operation without the GIL. @p function takes the options.
template <class Function>
PythonWork start(PythonGroup& group, TensorArguments& tensors, nb::handle timeout, Function function) {
  release_dropped_objects();
  CallOptions options;
  options.deadline = deadline_of(timeout).value_or(Deadline::after(group->timeout()));
  options.keep_alive = tensors.owner();
  options.stream = tensors.stream();
  const Deadline latest{options.deadline->when() + kSlack};
  const WithoutGil released;
  return {.work = function(std::move(options)), .latest = latest};
}

/// An operation of ddp::ProcessGroup on one tensor. @tparam Arguments those after it
template <Access kAccess, auto kOperation, class... Arguments>
struct OnTensor {
  static PythonWork call(PythonGroup& group, nb::handle tensor, Arguments... arguments, nb::handle timeout,
                         StreamArgument stream) {
    TensorArguments tensors(stream);
    const TensorView view = tensors.add(tensor, "tensor", kAccess);
    return start(group, tensors, timeout, [&](CallOptions options) {
      return ((*group).*kOperation)(view, native(arguments)..., std::move(options));
    });
  }
};

/// The same from one tensor to another.
template <auto kOperation, class... Arguments>
struct BetweenTensors {
  static PythonWork call(PythonGroup& group, nb::handle input, nb::handle output, Arguments... arguments,
                         nb::handle timeout, StreamArgument stream) {
    TensorArguments tensors(stream);
    const TensorView from = tensors.add(input, "input", Access::read);
    const TensorView to = tensors.add(output, "output", Access::write);
    return start(group, tensors, timeout, [&](CallOptions options) {
      return ((*group).*kOperation)(from, to, native(arguments)..., std::move(options));
    });
  }
};

PythonWork broadcast(PythonGroup& group, nb::handle tensor, int root, nb::handle timeout, StreamArgument stream) {
  const auto call = group->rank() == root ? &OnTensor<Access::read, &ProcessGroup::broadcast, int>::call
                                          : &OnTensor<Access::write, &ProcessGroup::broadcast, int>::call;
  return call(group, tensor, root, timeout, stream);
}

PythonWork gather(PythonGroup& group, nb::handle input, nb::handle output, int root, nb::handle timeout,
                  StreamArgument stream) {
  TensorArguments tensors(stream);
  const TensorView from = tensors.add(input, "input", Access::read);
  const TensorView to = tensors.add(output, "output", Access::write, group->rank() != root);
  return start(group, tensors, timeout,
               [&](CallOptions options) { return group->gather(from, to, root, std::move(options)); });
}

PythonWork scatter(PythonGroup& group, nb::handle input, nb::handle output, int root, nb::handle timeout,
                   StreamArgument stream) {
  TensorArguments tensors(stream);
  const TensorView from = tensors.add(input, "input", Access::read, group->rank() != root);
  const TensorView to = tensors.add(output, "output", Access::write);
  return start(group, tensors, timeout,
               [&](CallOptions options) { return group->scatter(from, to, root, std::move(options)); });
}

PythonWork barrier(PythonGroup& group, nb::handle timeout) {
  TensorArguments none;
  return start(group, none, timeout, [&](CallOptions options) { return group->barrier(std::move(options)); });
}

void coalesced(PythonGroup& group, const nb::iterable& tensors, int root, StreamArgument stream) {
  release_dropped_objects();
  TensorArguments arguments(stream);
  std::vector<TensorView> views;
  for (const nb::handle tensor : tensors) {
    views.push_back(arguments.add(tensor, "tensors", group->rank() == root ? Access::read : Access::write));
  }
  const auto on = arguments.stream();
  run_interruptibly([handle = *group, views = std::move(views), owner = arguments.owner(), root, on]() mutable {
    broadcast_coalesced(handle, views, root, on);
  });
  release_dropped_objects();
}

std::optional<PythonGroup> new_group(PythonGroup& group, const std::vector<int>& members) {
  auto made = interruptible([handle = *group, members]() mutable { return handle.new_group(members); });
  if (!made) return std::nullopt;
  return PythonGroup(std::move(*made));
}

void abort_group(PythonGroup& group, nb::handle reason) {
  const std::optional<Error> error = error_of(reason);
  const std::string words = nb::str(reason).c_str();
  const WithoutGil released;
  error ? group->abort(*error) : group->abort(words);
}

/// Adds an operation. @p parameters: its own, for type checkers; after them come `timeout` and `stream`, by name.
template <class Function, class... Arguments>
void add(nb::class_<PythonGroup>& group, const std::string& name, Function function, const std::string& parameters,
         const char* documentation, const Arguments&... arguments) {
  const std::string signature =
      "def " + name + "(self, " + parameters + ", *" DDP_LIMIT ", stream: int | None = None) -> Work";
  group.def(name.c_str(), function, arguments..., nb::kw_only(), "timeout"_a = nb::none(), "stream"_a = nb::none(),
            nb::sig(signature.c_str()), documentation);
}

template <auto kFact>
auto group_fact(PythonGroup& group) {
  return ((*group).*kFact)();
}

void add_operations(nb::class_<PythonGroup>& group) {
  using Counts = const std::vector<std::size_t>&;
  using Name = const std::string&;
  const std::string tensor = "libddp._types.Tensor", in_out = "input: " + tensor + ", output: " + tensor;
  const std::string op = ", op: typing.Literal['sum', 'avg', 'min', 'max', 'product'] = 'sum'";
  add(group, "all_reduce", &OnTensor<Access::write, &ProcessGroup::all_reduce, Name>::call, "tensor: " + tensor + op,
      "In place: every rank receives the combination of all ranks' values. 'avg' divides by the number of ranks.",
      "tensor"_a, "op"_a = "sum");
  add(group, "broadcast", &broadcast, "tensor: " + tensor + ", root: int",
      "In place: every rank receives root's values.", "tensor"_a, "root"_a);
  add(group, "reduce", &OnTensor<Access::write, &ProcessGroup::reduce, int, Name>::call,
      "tensor: " + tensor + ", root: int" + op,
      "In place: root receives the combination; the others' values are undefined afterwards.", "tensor"_a, "root"_a,
      "op"_a = "sum");
  add(group, "all_gather", &BetweenTensors<&ProcessGroup::all_gather>::call, in_out,
      "output has size times the elements of input, in rank order.", "input"_a, "output"_a);
  add(group, "all_gather_v", &BetweenTensors<&ProcessGroup::all_gather_v, Counts>::call,
      in_out + ", counts: collections.abc.Sequence[int]",
      "Rank i contributes counts[i] elements; output has their sum, in rank order. counts are equal on all ranks.",
      "input"_a, "output"_a, "counts"_a);
  add(group, "gather", &gather, in_out + " | None, root: int",
      "As all_gather, but only root gets the output; the others may give None.", "input"_a, "output"_a.none(),
      "root"_a);
  add(group, "scatter", &scatter, "input: " + tensor + " | None, output: " + tensor + ", root: int",
      "root's input has size times the elements of output; part i goes to rank i. The others may give None.",
      "input"_a.none(), "output"_a, "root"_a);
  add(group, "reduce_scatter", &BetweenTensors<&ProcessGroup::reduce_scatter, Name>::call, in_out + op,
      "input has size times the elements of output; rank i gets the combination of part i of all ranks.", "input"_a,
      "output"_a, "op"_a = "sum");
  add(group, "all_to_all", &BetweenTensors<&ProcessGroup::all_to_all>::call, in_out,
      "Both have size equal parts; part i of input becomes part rank of rank i's output.", "input"_a, "output"_a);
  add(group, "send", &OnTensor<Access::read, &ProcessGroup::send, int, std::uint32_t>::call,
      "tensor: " + tensor + ", peer: int, tag: int = 0",
      "Matches one recv of the same tag, type and number of elements at peer.", "tensor"_a, "peer"_a, "tag"_a = 0);
  add(group, "recv", &OnTensor<Access::write, &ProcessGroup::recv, int, std::uint32_t>::call,
      "tensor: " + tensor + ", peer: int, tag: int = 0",
      "Matches one send of the same tag, type and number of elements at peer.", "tensor"_a, "peer"_a, "tag"_a = 0);
  group.def("barrier", &barrier, nb::kw_only(), "timeout"_a = nb::none(),
            nb::sig("def barrier(self, *" DDP_LIMIT ") -> Work"), "Ends when every rank has entered it.");
}

}  // namespace

void add_group(nb::module_& module) {
  nb::class_<PythonGroup> made(
      module, "ProcessGroup",
      "Ranks that communicate. All of them issue the collectives of a group in the same order. Tensors are "
      "C-contiguous: numpy arrays and other objects with the buffer protocol or DLPack (torch.Tensor), of float32, "
      "float64, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8, uint32, uint64, bool, "
      "complex64 or complex128 (added and averaged only). Nothing is copied. Every operation starts at once, returns a "
      "Work, and ends within `timeout` (seconds; default: the group's). Leave tensors untouched until then. `stream`: "
      "of CUDA tensors, the cudaStream_t, as an integer, that fills them; default: the device's default stream.");
  add_operations(made);
  add_object_collectives(made);
  made.def_prop_ro("rank", &group_fact<&ProcessGroup::rank>, "This process's rank in the group.")
      .def_prop_ro("size", &group_fact<&ProcessGroup::size>)
      .def_prop_ro("global_ranks", &group_fact<&ProcessGroup::global_ranks>,
                   "World rank of each member, by rank in the group.")
      .def_prop_ro("name", &group_fact<&ProcessGroup::name>)
      .def_prop_ro("backend", &group_fact<&ProcessGroup::backend>, "That of CPU tensors.")
      .def_prop_ro(
          "timeout", [](PythonGroup& group) { return std::chrono::duration<double>(group->timeout()).count(); },
          "Seconds.")
      .def("broadcast_coalesced", &coalesced, "tensors"_a, "root"_a = 0, nb::kw_only(), "stream"_a = nb::none(),
           nb::sig("def broadcast_coalesced(self, tensors: collections.abc.Iterable[libddp._types.Tensor], root: int = "
                   "0, *, stream: int | None = None) -> None"),
           "In place: root's values of many tensors, of any types, to all ranks in few messages. Returns when they are "
           "there.")
      .def("abort", &abort_group, "error"_a = "", nb::sig("def abort(self, error: BaseException | str = '') -> None"),
           "Ends the group on all ranks that can be reached: operations under way and later ones raise `error`, if "
           "libddp raised it, else Aborted, which names this rank and says `error`. From any thread. Returns when this "
           "rank's operations have ended, after some seconds at most.")
      .def("new_group", &new_group, "members"_a,
           nb::sig("def new_group(self, members: collections.abc.Sequence[int]) -> ProcessGroup | None"),
           "A group of these ranks of this one, in this order; None for those outside. Collective over this group.")
      .def("__repr__", [](PythonGroup& group) {
        return "<libddp.ProcessGroup '" + group->name() + "' rank " + std::to_string(group->rank()) + " of " +
               std::to_string(group->size()) + ">";
      });
}

// Python objects among ranks: pickled, as torch.distributed does.

namespace {

Bytes pickled(nb::handle object) {
  const auto bytes =
      nb::borrow<nb::bytes>(call_python(nb::module_::import_("pickle").attr("dumps"), nb::make_tuple(object)));
  const auto* first = static_cast<const std::byte*>(bytes.data());
  return {first, first + bytes.size()};
}

nb::object unpickled(const Bytes& bytes) {
  return call_python(nb::module_::import_("pickle").attr("loads"),
                     nb::make_tuple(nb::bytes(bytes.data(), bytes.size())));
}

nb::list unpickled(const std::vector<Bytes>& all) {
  nb::list objects;
  for (const Bytes& bytes : all) objects.append(unpickled(bytes));
  return objects;
}

nb::object broadcast_one(PythonGroup& group, nb::handle object, int root, nb::handle timeout) {
  Bytes mine = group->rank() == root ? pickled(object) : Bytes{};
  return unpickled(
      interruptible([handle = *group, mine = std::move(mine), root, limit = deadline_of(timeout)]() mutable {
        return broadcast_object(handle, mine, root, limit);
      }));
}

nb::list all_gather_one(PythonGroup& group, nb::handle object, nb::handle timeout) {
  return unpickled(interruptible([handle = *group, mine = pickled(object), limit = deadline_of(timeout)]() mutable {
    return all_gather_object(handle, mine, limit);
  }));
}

nb::object gather_one(PythonGroup& group, nb::handle object, int root, nb::handle timeout) {
  const auto all =
      interruptible([handle = *group, mine = pickled(object), root, limit = deadline_of(timeout)]() mutable {
        return gather_object(handle, mine, root, limit);
      });
  if (group->rank() != root) return nb::none();
  return unpickled(all);
}

nb::object scatter_one(PythonGroup& group, nb::handle objects, int root, nb::handle timeout) {
  std::vector<Bytes> mine;
  if (group->rank() == root && !objects.is_none()) {
    for (const nb::handle object : nb::borrow<nb::iterable>(objects)) mine.push_back(pickled(object));
  }
  return unpickled(
      interruptible([handle = *group, mine = std::move(mine), root, limit = deadline_of(timeout)]() mutable {
        return scatter_object(handle, mine, root, limit);
      }));
}

void broadcast_named(PythonGroup& group, nb::handle mapping, int root, std::optional<std::uintptr_t> stream) {
  release_dropped_objects();
  TensorArguments tensors(stream);
  auto named = named_tensors(mapping, tensors, group->rank() == root ? Access::read : Access::write);
  const auto on = tensors.stream();
  run_interruptibly([handle = *group, named = std::move(named), owner = tensors.owner(), root, on]() mutable {
    broadcast_state(handle, named, root, on);
  });
  release_dropped_objects();
}

}  // namespace

void add_object_collectives(nb::class_<PythonGroup>& group) {
  group
      .def(
          "broadcast_object", &broadcast_one, "object"_a.none(), "root"_a = 0, nb::kw_only(), "timeout"_a = nb::none(),
          nb::sig("def broadcast_object(self, object: object, root: int = 0, *" DDP_LIMIT ") -> typing.Any"),
          "root's object, on all ranks; the others' are ignored. Objects are pickled: what a rank of the job "
          "sends can run code in the others. Blocks; `timeout` in seconds for the whole call, default: the group's for "
          "each of its exchanges. Raises Error as tensors' operations do, and pickle's exceptions, in one rank alone.")
      .def("all_gather_object", &all_gather_one, "object"_a.none(), nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def all_gather_object(self, object: object, *" DDP_LIMIT ") -> list[typing.Any]"),
           "All ranks' objects, in rank order, on all ranks. As broadcast_object.")
      .def("gather_object", &gather_one, "object"_a.none(), "root"_a = 0, nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def gather_object(self, object: object, root: int = 0, *" DDP_LIMIT ") -> list[typing.Any] | None"),
           "All ranks' objects, in rank order, on root; None on the others. As broadcast_object.")
      .def("scatter_object", &scatter_one, "objects"_a.none(), "root"_a = 0, nb::kw_only(), "timeout"_a = nb::none(),
           nb::sig("def scatter_object(self, objects: collections.abc.Iterable[object] | None, root: int = "
                   "0, *" DDP_LIMIT ") -> typing.Any"),
           "root's objects[i], on rank i; root gives one for each rank, the others may give None. As broadcast_object.")
      .def("broadcast_state", &broadcast_named, "tensors"_a, "root"_a = 0, nb::kw_only(), "stream"_a = nb::none(),
           nb::sig("def broadcast_state(self, tensors: " DDP_NAMED
                   ", root: int = 0, *, stream: int | None = None) -> None"),
           "In place: root's tensors of these names, to all ranks. First compares names, shapes and types, in order: "
           "where they differ every rank raises Mismatch with the first that does, and nothing is copied.");
}

}  // namespace ddp::python
