// libddp.World: ddp::World.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <ddp/diagnostics.hpp>
#include <ddp/job_secret.hpp>
#include <ddp/torch_store.hpp>

#include "classes.hpp"
#include "errors.hpp"
#include "interpreter.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

LaunchSource source_of(const std::string& name) {
  for (const auto source : {LaunchSource::pmix, LaunchSource::pmi2, LaunchSource::pmi1, LaunchSource::torchrun,
                            LaunchSource::openmpi, LaunchSource::slurm, LaunchSource::single}) {
    if (name == to_string(source)) return source;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "using the argument launch",
               .cause = "'" + name + "' is not a source of ranks",
               .hint = "sources are pmix, pmi2, pmi1, torchrun, openmpi, slurm and single"}};
}

/// DDP_BIND binds the calling thread's memory; ddprun has already bound the rank, so it sets none.
bool binds_memory() {
  const char* bind = std::getenv("DDP_BIND");
  return bind != nullptr && *bind != '\0' && std::string_view(bind) != "none";
}

PythonWorld* make_world(nb::handle timeout, const std::optional<std::string>& launch, bool keep_session) {
  InitOptions options{.timeout = duration_of(timeout), .keep_session = keep_session};
  if (launch) options.launch = source_of(*launch);
  const auto make = [options] { return std::make_shared<SharedWorld>(World::init(options)); };
  if (!binds_memory()) return new PythonWorld(interruptible(make));
  std::shared_ptr<SharedWorld> shared;
  {
    const WithoutGil released;
    shared = make();
  }
  return new PythonWorld(std::move(shared));
}

Deadline limit_of(nb::handle timeout) { return deadline_of(timeout).value_or(Deadline::after(kStoreTimeout)); }

/// Calls @p function with the World under its lock, which a call interrupted by a signal may still hold. Throws
/// Error(timeout) if it does so at @p limit.
template <class Function>
auto call_world(std::shared_ptr<SharedWorld> shared, Function function, std::optional<Deadline> limit = {}) {
  return interruptible([shared = std::move(shared), function = std::move(function), limit] {
    std::unique_lock lock(shared->calls, std::defer_lock);
    if (!limit) lock.lock();
    if (limit && !lock.try_lock_until(limit->when())) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = "using the job's store",
                   .cause = "another call to it is still under way"}};
    }
    return function(*shared->world);
  });
}

PythonGroup make_group(const PythonWorld& world, const std::string& backend) {
  return PythonGroup(call_world(world.job("making the process group"),
                                [backend](World& real) { return make_process_group(real, backend); }));
}

template <auto kFact, class... Arguments>
auto world_fact(const PythonWorld& world, Arguments... arguments) {
  return (world.facts().*kFact)(arguments...);
}

nb::dict settings_of(const PythonWorld& world) {
  nb::dict settings;
  for (const EnvironmentSetting& each : world.facts().settings()) settings[each.name.c_str()] = each.value;
  return settings;
}

/// Sets os.environ, which also sets the process' environment but does not see setenv(3).
void export_settings(const PythonWorld& world) {
  const nb::object environment = nb::module_::import_("os").attr("environ");
  for (const EnvironmentSetting& each : world.facts().settings()) environment.attr("setdefault")(each.name, each.value);
}

std::optional<EnvironmentReport> environment_report(const PythonWorld& world, nb::handle timeout, bool all) {
  const Deadline limit = limit_of(timeout);
  return call_world(
      world.job("asking for all ranks' environments"),
      [limit, all](World& real) { return EnvironmentReport::gather(real.key_value_store(), limit, all); }, limit);
}

std::string repr(const PythonWorld& world) {
  if (world.closed()) return "<libddp.World closed>";
  const World& facts = world.facts();
  return "<libddp.World rank " + std::to_string(facts.rank()) + " of " + std::to_string(facts.world_size()) + ", by " +
         std::string(to_string(facts.source())) + ">";
}

}  // namespace

const std::shared_ptr<SharedWorld>& PythonWorld::shared() const {
  if (shared_) return shared_;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "using a World",
               .cause = "it has been closed",
               .hint = "libddp.init() makes another, on all ranks"}};
}

std::shared_ptr<SharedWorld> PythonWorld::job(std::string_view attempted) const {
  if (shared()->process == ::getpid()) return shared();
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = std::string(attempted),
               .cause = "this process was forked from the one that called libddp.init()",
               .hint = "only that process can talk to other ranks; start helpers by multiprocessing's spawn"}};
}

void PythonWorld::close() noexcept {
  auto last = std::move(shared_);  // with the GIL, since other threads ask
  if (!last) return;
  const WithoutGil released;
  last.reset();
}

namespace {

/// What asks the job, not only this process.
void add_services(nb::class_<PythonWorld>& made) {
  made.def(
          "environment_report", &environment_report, "timeout"_a = nb::none(), nb::kw_only(), "all"_a = false,
          nb::sig(
              "def environment_report(self, timeout: float | datetime.timedelta | None = None, *, all: bool = False) "
              "-> EnvironmentReport | None"),
          "The environment variables of all ranks, and what is wrong with them: on rank 0, None elsewhere. Collective. "
          "Raises the store's errors.\n\n"
          "timeout: seconds; default 120. all: also variables that have nothing to do with training.")
      .def_prop_ro(
          "store", [](const PythonWorld& world) { return PythonStore{.shared = world.job("using the job's store")}; },
          "The job's key-value store.")
      .def_prop_ro(
          "secret",
          [](const PythonWorld& world) {
            const Bytes secret = call_world(world.job("asking for the job's secret"), &job_secret);
            return nb::bytes(secret.data(), secret.size());
          },
          "Random bytes that the ranks know and others do not; empty in a world of one.")
      .def("process_group", &make_group, "backend"_a = "auto",
           "The group of all ranks. The first call is collective; later ones give the same group.\n\n"
           "backend: 'auto', 'host' (CPU tensors), 'nccl' (CPU and CUDA tensors), or a plugin's name.")
      .def(
          "leave_session",
          [](const PythonWorld& world) {
            call_world(world.job("leaving the launcher's service"), [](World& real) { real.leave_session(); });
          },
          "Leaves the launcher's key-value service now; facts and groups stay.")
      .def(
          "close", &PythonWorld::close,
          "Leaves the job. Groups live on as long as there are handles to them. Idempotent; libddp.init() may follow.");
}

}  // namespace

void add_world(nb::module_& module) {
  module.def(
      "init", &make_world, "timeout"_a.none(), "launch"_a.none(), "keep_session"_a, nb::rv_policy::take_ownership,
      nb::sig("def init(timeout: float | datetime.timedelta | None, launch: str | None, keep_session: bool) -> World"));

  nb::class_<PythonWorld> made(module, "World",
                               "The job as this process sees it. Made by libddp.init(), on all ranks.");
  made.def_prop_ro("rank", &world_fact<&World::rank>)
      .def_prop_ro("world_size", &world_fact<&World::world_size>)
      .def_prop_ro("local_rank", &world_fact<&World::local_rank>, "Position among the ranks of this node.")
      .def_prop_ro("local_world_size", &world_fact<&World::local_world_size>, "Ranks on this node.")
      .def_prop_ro("node_rank", &world_fact<&World::node_rank>, "This node's number.")
      .def_prop_ro("num_nodes", &world_fact<&World::num_nodes>)
      .def_prop_ro(
          "source", [](const PythonWorld& world) { return std::string(to_string(world.facts().source())); },
          "Where ranks come from: pmix, pmi2, torchrun, openmpi, slurm or single.")
      .def_prop_ro("source_reason", &world_fact<&World::source_reason>)
      .def_prop_ro("interface_name", &world_fact<&World::interface_name>)
      .def_prop_ro("interface_address", &world_fact<&World::interface_address>)
      .def_prop_ro("interface_reason", &world_fact<&World::interface_reason>)
      .def_prop_ro("closed", &PythonWorld::closed)
      .def("node_of", &world_fact<&World::node_of, int>, "rank"_a, "The node of a rank, from 0.")
      .def("local_rank_of", &world_fact<&World::local_rank_of, int>, "rank"_a,
           "The local rank of a rank: its position among those of its node.")
      .def("ranks_on_node", &world_fact<&World::ranks_on_node, int>, "node"_a, "Ascending.")
      .def(
          "hostname",
          [](const PythonWorld& world, int rank) {
            return call_world(world.job("asking for a host name"), [rank](World& real) { return real.hostname(rank); });
          },
          "rank"_a, "Host of any rank.")
      .def_prop_ro(
          "device_index",
          [](const PythonWorld& world) {
            const auto& device = world.facts().device();
            return device ? std::optional(device->index) : std::nullopt;
          },
          "The CUDA device that this rank should use; None without one.")
      .def_prop_ro("device", &world_fact<&World::device>, "The same with its UUID and the reason.")
      .def_prop_ro(
          "placement", &world_fact<&World::placement>,
          "What init() bound this process to; None unless DDP_BIND asked for it, and where ddprun has bound it.")
      .def_prop_ro("settings", &settings_of, nb::sig("def settings(self) -> dict[str, str]"),
                   "Environment variables of NCCL, UCX, gloo and OpenMP that suit placement; empty without one.")
      .def("export_settings", &export_settings,
           "Sets them in os.environ where they are unset. Right after init(), before NCCL or UCX are used.");
  add_services(made);
  made.def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> World"))
      .def(
          "__exit__", [](PythonWorld& world, nb::args) { world.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", &repr);
}

// libddp.KeyValueStore: ddp::KeyValueStore.

namespace {

/// Calls the store under its lock.
template <class Function>
auto call_store(const PythonStore& store, Deadline limit, Function function) {
  return call_world(
      store.shared, [function = std::move(function)](World& world) { return function(world.key_value_store()); },
      limit);
}

void put(const PythonStore& store, const std::string& key, const nb::bytes& value) {
  const auto* first = static_cast<const std::byte*>(value.data());
  call_store(store, Deadline::after(kStoreTimeout),
             [key, bytes = Bytes(first, first + value.size())](KeyValueStore& real) { real.put(key, bytes); });
}

nb::bytes get(const PythonStore& store, int rank, const std::string& key, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  const Bytes value =
      call_store(store, limit, [rank, key, limit](KeyValueStore& real) { return real.get(rank, key, limit); });
  return nb::bytes(value.data(), value.size());
}

void fence(const PythonStore& store, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  call_store(store, limit, [limit](KeyValueStore& real) { real.fence(limit); });
}

std::shared_ptr<TorchStore> make_torch_store(const PythonWorld& world, nb::handle timeout) {
  const Deadline limit = limit_of(timeout);
  return call_world(
      world.job("making a store of torch.distributed"),
      [limit](World& real) { return std::make_shared<TorchStore>(real, limit); }, limit);
}

}  // namespace

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
           "cannot be used after that.")
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
