// Python objects among ranks: pickled, as torch.distributed does.
#include <ddp/broadcast_state.hpp>
#include <ddp/object_collectives.hpp>

#include <nanobind/stl/optional.h>

#include "classes.hpp"
#include "errors.hpp"
#include "interruptible.hpp"
#include "named_tensors.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

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

#define DDP_LIMIT ", timeout: float | datetime.timedelta | None = None"

void add_object_collectives(nb::class_<PythonGroup>& group) {
  group
      .def(
          "broadcast_object", &broadcast_one, "object"_a.none(), "root"_a = 0, nb::kw_only(), "timeout"_a = nb::none(),
          nb::sig("def broadcast_object(self, object: object, root: int = 0, *" DDP_LIMIT ") -> typing.Any"),
          "root's object, on all ranks; the others' are not looked at. Objects are pickled: what a rank of the job "
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
