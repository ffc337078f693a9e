// libddp.World: ddp::World.
#include <cstdlib>
#include <string>
#include <string_view>

#include <ddp/diagnostics.hpp>
#include <ddp/job_secret.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "classes.hpp"
#include "errors.hpp"
#include "interruptible.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

LaunchSource source_of(const std::string& name) {
  for (const auto source : {LaunchSource::pmix, LaunchSource::pmi2, LaunchSource::torchrun, LaunchSource::openmpi,
                            LaunchSource::slurm, LaunchSource::single}) {
    if (name == to_string(source)) return source;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "using the argument launch",
               .cause = "'" + name + "' is no source of ranks",
               .hint = "sources are pmix, pmi2, torchrun, openmpi, slurm and single"}};
}

/// DDP_BIND binds the memory of the thread that calls; ddprun, which has bound the rank itself, sets none.
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

PythonGroup make_group(const PythonWorld& world, const std::string& backend) {
  return PythonGroup(interruptible([shared = world.job("making the process group"), backend] {
    const std::lock_guard lock(shared->calls);
    return make_process_group(*shared->world, backend);
  }));
}

nb::dict settings_of(const PythonWorld& world) {
  nb::dict settings;
  for (const EnvironmentSetting& each : world.facts().settings()) settings[each.name.c_str()] = each.value;
  return settings;
}

/// By os.environ, which does not see what setenv(3) sets, and sets that, too.
void export_settings(const PythonWorld& world) {
  const nb::object environment = nb::module_::import_("os").attr("environ");
  for (const EnvironmentSetting& each : world.facts().settings()) environment.attr("setdefault")(each.name, each.value);
}

std::optional<EnvironmentReport> environment_report(const PythonWorld& world, nb::handle timeout, bool all) {
  const Deadline limit = deadline_of(timeout).value_or(Deadline::after(kStoreTimeout));
  return interruptible([shared = world.job("asking for all ranks' environments"), limit, all] {
    const std::unique_lock lock(shared->calls, limit.when());
    if (!lock) throw busy_store();
    return EnvironmentReport::gather(shared->world->key_value_store(), limit, all);
  });
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

void add_world(nb::module_& module) {
  module.def(
      "init", &make_world, "timeout"_a.none(), "launch"_a.none(), "keep_session"_a, nb::rv_policy::take_ownership,
      nb::sig("def init(timeout: float | datetime.timedelta | None, launch: str | None, keep_session: bool) -> World"));

  const auto number = [](int (World::*fact)() const noexcept) {
    return [fact](const PythonWorld& world) { return (world.facts().*fact)(); };
  };
  nb::class_<PythonWorld>(module, "World", "The job as this process sees it. Made by libddp.init(), on all ranks.")
      .def_prop_ro("rank", number(&World::rank))
      .def_prop_ro("world_size", number(&World::world_size))
      .def_prop_ro("local_rank", number(&World::local_rank), "Position among the ranks of this node.")
      .def_prop_ro("local_world_size", number(&World::local_world_size), "Ranks on this node.")
      .def_prop_ro("node_rank", number(&World::node_rank), "This node's number.")
      .def_prop_ro("num_nodes", number(&World::num_nodes))
      .def_prop_ro(
          "source", [](const PythonWorld& world) { return std::string(to_string(world.facts().source())); },
          "Where ranks come from: pmix, pmi2, torchrun, openmpi, slurm or single.")
      .def_prop_ro("source_reason", [](const PythonWorld& world) { return world.facts().source_reason(); })
      .def_prop_ro("interface_name", [](const PythonWorld& world) { return world.facts().interface_name(); })
      .def_prop_ro("interface_address", [](const PythonWorld& world) { return world.facts().interface_address(); })
      .def_prop_ro("interface_reason", [](const PythonWorld& world) { return world.facts().interface_reason(); })
      .def_prop_ro("closed", &PythonWorld::closed)
      .def(
          "node_of", [](const PythonWorld& world, int rank) { return world.facts().node_of(rank); }, "rank"_a)
      .def(
          "local_rank_of", [](const PythonWorld& world, int rank) { return world.facts().local_rank_of(rank); },
          "rank"_a)
      .def(
          "ranks_on_node", [](const PythonWorld& world, int node) { return world.facts().ranks_on_node(node); },
          "node"_a, "Ascending.")
      .def(
          "hostname",
          [](const PythonWorld& world, int rank) {
            return interruptible([shared = world.job("asking for a host name"), rank] {
              const std::lock_guard lock(shared->calls);
              return shared->world->hostname(rank);
            });
          },
          "rank"_a, "Host of any rank.")
      .def_prop_ro(
          "device_index",
          [](const PythonWorld& world) {
            const auto& device = world.facts().device();
            return device ? std::optional(device->index) : std::nullopt;
          },
          "The CUDA device that this rank should use; None without one.")
      .def_prop_ro(
          "device", [](const PythonWorld& world) { return world.facts().device(); },
          "The same with its UUID and the reason.")
      .def_prop_ro(
          "placement", [](const PythonWorld& world) { return world.facts().placement(); },
          "What init() bound this process to; None unless DDP_BIND asked for it, and where ddprun has bound it.")
      .def_prop_ro("settings", &settings_of, nb::sig("def settings(self) -> dict[str, str]"),
                   "Environment variables of NCCL, UCX, gloo and OpenMP that suit placement; empty without one.")
      .def("export_settings", &export_settings,
           "Sets them in os.environ where they are unset. Right after init(), before NCCL or UCX are used.")
      .def(
          "environment_report", &environment_report, "timeout"_a = nb::none(), nb::kw_only(), "all"_a = false,
          nb::sig(
              "def environment_report(self, timeout: float | datetime.timedelta | None = None, *, all: bool = False) "
              "-> EnvironmentReport | None"),
          "The environment variables of all ranks, and what is wrong with them: on rank 0, None elsewhere. Collective. "
          "Raises as the store.\n\n"
          "timeout: seconds; default 120. all: also variables that have nothing to do with training.")
      .def_prop_ro(
          "store", [](const PythonWorld& world) { return PythonStore{.shared = world.job("using the job's store")}; },
          "The job's key-value store.")
      .def_prop_ro(
          "secret",
          [](const PythonWorld& world) {
            const Bytes secret = interruptible([shared = world.job("asking for the job's secret")] {
              const std::lock_guard lock(shared->calls);
              return job_secret(*shared->world);
            });
            return nb::bytes(secret.data(), secret.size());
          },
          "Random bytes that the ranks know and others do not; empty in a world of one.")
      .def("process_group", &make_group, "backend"_a = "auto",
           "The group of all ranks. The first call is collective; later ones give the same group.\n\n"
           "backend: 'auto', 'host' (CPU tensors), 'nccl' (CPU and CUDA tensors), or a plugin's name.")
      .def(
          "leave_session",
          [](const PythonWorld& world) {
            run_interruptibly([shared = world.job("leaving the launcher's service")] {
              const std::lock_guard lock(shared->calls);
              shared->world->leave_session();
            });
          },
          "Leaves the launcher's key-value service now; facts and groups stay.")
      .def("close", &PythonWorld::close,
           "Leaves the job. Groups live on as long as there are handles to them. Idempotent; libddp.init() may follow.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> World"))
      .def(
          "__exit__", [](PythonWorld& world, nb::args) { world.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", &repr);
}

}  // namespace ddp::python
