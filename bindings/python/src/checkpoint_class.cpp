// libddp.Checkpoints: ddp::Checkpoints on mappings from names to tensors.
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include <ddp/checkpoint.hpp>

#include <nanobind/stl/optional.h>

#include "classes.hpp"
#include "errors.hpp"
#include "exclusive.hpp"
#include "interruptible.hpp"
#include "named_tensors.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using PythonCheckpoints = Exclusive<Checkpoints>;

void make_checkpoints(PythonCheckpoints* place, PythonGroup& group, nb::handle folder, int keep, nb::handle timeout) {
  CheckpointOptions options{.keep = keep};
  if (const auto limit = duration_of(timeout)) options.timeout = std::chrono::ceil<std::chrono::seconds>(*limit);
  new (place) PythonCheckpoints(std::in_place, *group, path_of(folder), options);
}

template <auto kSave>
void save(const PythonCheckpoints& checkpoints, std::int64_t step, nb::handle mapping, const nb::bytes& extra) {
  release_dropped_objects();
  TensorArguments tensors;
  auto named = named_tensors(mapping, tensors, Access::read);
  run_interruptibly([checkpoints, step, named = std::move(named), owner = tensors.owner(),
                     extra = std::string(extra.c_str(), extra.size())] {
    checkpoints.use("saving a checkpoint", [&](Checkpoints& real) { (real.*kSave)(step, named, extra); });
  });
  release_dropped_objects();
}

std::optional<Restored> restore(const PythonCheckpoints& checkpoints, nb::handle mapping,
                                std::optional<std::int64_t> step) {
  release_dropped_objects();
  TensorArguments tensors;
  auto named = named_tensors(mapping, tensors, Access::write);
  auto restored = interruptible([checkpoints, step, named = std::move(named), owner = tensors.owner()] {
    return checkpoints.use("restoring a checkpoint", [&](Checkpoints& real) { return real.restore(named, step); });
  });
  release_dropped_objects();
  return restored;
}

using SaveFunction = void (Checkpoints::*)(std::int64_t, std::span<const NamedTensor>, std::string_view);
constexpr SaveFunction kWhole = &Checkpoints::save;
constexpr SaveFunction kSharded = &Checkpoints::save_sharded;

}  // namespace

void add_checkpoints(nb::module_& module) {
  nb::class_<Restored>(module, "Restored", "What a checkpoint says besides its tensors.")
      .def_ro("step", &Restored::step)
      .def_prop_ro("extra",
                   [](const Restored& restored) { return nb::bytes(restored.extra.data(), restored.extra.size()); });

  nb::class_<PythonCheckpoints>(
      module, "Checkpoints",
      "The checkpoints in a folder, which all ranks see and one job at a time writes to: while another one does, save "
      "raises Conflict with the names of both. Whatever interrupts a save "
      "leaves the former checkpoint whole; damage is found by checksums. Tensors are those of ProcessGroup, on the "
      "CPU, of "
      "any shape, by name: numpy arrays, model.state_dict().\n\n"
      "save, save_sharded and restore are collective and block, without the GIL. All ranks raise the same Error, with "
      "the "
      "ranks concerned: SystemFailure (a file cannot be written or read), Protocol (damaged), Mismatch (of another "
      "step, "
      "model or number of ranks). One thread at a time.")
      .def("__init__", &make_checkpoints, "group"_a, "folder"_a, nb::kw_only(), "keep"_a = 3, "timeout"_a = nb::none(),
           nb::sig("def __init__(self, group: ProcessGroup, folder: str | os.PathLike[str], *, keep: int = 3, timeout: "
                   "float | datetime.timedelta | None = None) -> None"),
           "keep: so many of the newest; save removes older ones. 0: all. timeout: of a save or restore, in seconds; "
           "default: half an hour.")
      .def("save", &save<kWhole>, "step"_a, "tensors"_a, "extra"_a = nb::bytes(""),
           nb::sig("def save(self, step: int, tensors: " DDP_NAMED ", extra: bytes = b'') -> None"),
           "Rank 0's tensors and extra, which stand for all ranks'. step: >= 0, equal on all ranks; one of the same "
           "step "
           "is replaced.")
      .def("save_sharded", &save<kSharded>, "step"_a, "tensors"_a, "extra"_a = nb::bytes(""),
           nb::sig("def save_sharded(self, step: int, tensors: " DDP_NAMED ", extra: bytes = b'') -> None"),
           "Each rank's own, as of an optimizer that is split among ranks: for as many ranks.")
      .def("restore", &restore, "tensors"_a, "step"_a = nb::none(),
           nb::sig("def restore(self, tensors: " DDP_NAMED ", step: int | None = None) -> Restored | None"),
           "In place: the newest checkpoint whose files are there, or that of step; None where there is none. tensors: "
           "the names that were "
           "saved, "
           "in the same order, with the same shapes and types. Everything is verified before any tensor is touched. "
           "Raises NotFound if there is none of step.");
}

}  // namespace ddp::python
