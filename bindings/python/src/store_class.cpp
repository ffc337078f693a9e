// libddp.KeyValueStore: ddp::KeyValueStore.
#include <memory>
#include <string>

#include <ddp/torch_store.hpp>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "classes.hpp"
#include "errors.hpp"
#include "interruptible.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// Calls of the store under its lock, which one that a signal ended may still hold.
template <class Function>
auto call_store(const PythonStore& store, Deadline deadline, Function function) {
  return interruptible([shared = store.shared, deadline, function = std::move(function)] {
    const std::unique_lock lock(shared->calls, deadline.when());
    if (!lock) throw busy_store();
    return function(shared->world->key_value_store());
  });
}

Deadline limit_of(nb::handle timeout) { return deadline_of(timeout).value_or(Deadline::after(kStoreTimeout)); }

void put(const PythonStore& store, const std::string& key, const nb::bytes& value) {
  const auto* first = static_cast<const std::byte*>(value.data());
  call_store(store, Deadline::after(kStoreTimeout),
             [key, bytes = Bytes(first, first + value.size())](KeyValueStore& real) {
               real.put(key, bytes);
               return true;
             });
}

nb::bytes get(const PythonStore& store, int rank, const std::string& key, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  const Bytes value =
      call_store(store, limit, [rank, key, limit](KeyValueStore& real) { return real.get(rank, key, limit); });
  return nb::bytes(value.data(), value.size());
}

void fence(const PythonStore& store, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  call_store(store, limit, [limit](KeyValueStore& real) {
    real.fence(limit);
    return true;
  });
}

std::shared_ptr<TorchStore> make_torch_store(const PythonWorld& world, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  return interruptible([shared = world.job("making a store of torch.distributed"), limit] {
    const std::unique_lock lock(shared->calls, limit.when());
    if (!lock) throw busy_store();
    return std::make_shared<TorchStore>(*shared->world, limit);
  });
}

}  // namespace

Error busy_store() {
  return Error{{.code = ErrorCode::timeout,
                .attempted = "using the job's store",
                .cause = "another call to it is still under way"}};
}

void add_store(nb::module_& module) {
  nb::class_<PythonStore>(
      module, "KeyValueStore",
      "The rendezvous of a job: each rank puts values under its own keys, after a fence all can get them.")
      .def("put", &put, "key"_a, "value"_a,
           "Stores bytes under this rank and key, once. Others see them after the next fence.\n\n"
           "key: 1 to 64 characters of [A-Za-z0-9._-]; those that begin with 'ddp.' are libddp's own.")
      .def("get", &get, "rank"_a, "key"_a, "timeout"_a = nb::none(),
           nb::sig("def get(self, rank: int, key: str, timeout: float | datetime.timedelta | None = None) -> bytes"),
           "What that rank put before the last fence. Raises NotFound.")
      .def("fence", &fence, "timeout"_a = nb::none(),
           nb::sig("def fence(self, timeout: float | datetime.timedelta | None = None) -> None"),
           "Returns once every rank has called it as often. Raises Timeout with the ranks that did not; the store "
           "cannot be "
           "used after that.")
      .def_prop_ro("transport", [](const PythonStore& store) {
        return call_store(store, Deadline::after(kStoreTimeout),
                          [](KeyValueStore& real) { return std::string(real.transport()); });
      });
  nb::class_<TorchStore>(
      module, "TorchStore",
      "Where the ranks of a World find a store of torch.distributed that serves them alone. What this "
      "rank does for that ends with the object.")
      .def_prop_ro("address", &TorchStore::address)
      .def_prop_ro("port", &TorchStore::port)
      .def_prop_ro("of_launcher", &TorchStore::of_launcher, "Whether the launcher serves it.")
      .def_prop_ro("prefix", &TorchStore::prefix, "What the keys of this World's ranks begin with.");
  module.def("torch_store", &make_torch_store, "world"_a, "timeout"_a = nb::none(),
             nb::sig("def torch_store(world: World, timeout: float | datetime.timedelta | None = None) -> TorchStore"),
             "Collective over the World's ranks.");
}

}  // namespace ddp::python
