// libddp.DistributedSampler and ElasticSampler: samplers for torch.utils.data.DataLoader, without torch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include <ddp/checkpoint.hpp>
#include <ddp/early_stop.hpp>
#include <ddp/elastic_sampler.hpp>
#include <ddp/metric_set.hpp>
#include <ddp/rank_seed.hpp>

#include "classes.hpp"
#include "errors.hpp"
#include "interpreter.hpp"
#include "tensor_argument.hpp"

#define DDP_REMAINDER "typing.Literal['pad', 'drop', 'uneven']"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

constexpr std::pair<const char*, Remainder> kRemainders[] = {
    {"pad", Remainder::pad}, {"drop", Remainder::drop}, {"uneven", Remainder::uneven}};

SamplerOptions sampler_options(bool shuffle, std::int64_t seed, const std::string& remainder) {
  for (const auto& [word, value] : kRemainders) {
    if (remainder == word) return {.shuffle = shuffle, .seed = seed, .remainder = value};
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "using the argument remainder",
               .cause = "'" + remainder + "' is not a way to distribute the remainder",
               .hint = "give pad, drop or uneven"}};
}

/// A number of samples, or the length of a data set.
std::int64_t length_of(nb::handle dataset) {
  std::int64_t size = 0;
  if (nb::try_cast(dataset, size)) return size;
  return static_cast<std::int64_t>(nb::len(dataset));
}

template <class Sampler>
void construct(Sampler* place, nb::handle dataset, nb::handle group, int ranks, int rank, bool shuffle,
               std::int64_t seed, const std::string& remainder) {
  const SamplerOptions options = sampler_options(shuffle, seed, remainder);
  if (!group.is_none()) {
    new (place) Sampler(interruptible([size = length_of(dataset), handle = *nb::cast<PythonGroup&>(group), options] {
      return Sampler(size, handle, options);
    }));
  } else {
    new (place) Sampler(length_of(dataset), ranks, rank, options);
  }
}

/// Works on a copy, since other threads may run meanwhile.
template <class Sampler>
std::vector<std::int64_t> indices_of(Sampler sampler) {
  const WithoutGil released;
  return sampler.indices();
}

/// What both samplers have.
template <class Sampler>
nb::class_<Sampler> add_sampler(nb::module_& module, const char* name, const char* remainder, const char* about,
                                const nb::sig& signature) {
  nb::class_<Sampler> sampler(module, name, about);
  sampler
      .def("__init__", &construct<Sampler>, "dataset"_a, "group"_a = nb::none(), nb::kw_only(), "ranks"_a = 1,
           "rank"_a = 0, "shuffle"_a = true, "seed"_a = 0, "remainder"_a = remainder, signature,
           "dataset: the data set, or its number of samples. group: the ranks that share it; without one, `ranks` and "
           "`rank`.\n"
           "remainder: 'pad' gives the first samples again until all ranks have as many, 'drop' leaves out what "
           "remains, 'uneven' gives the first ranks one more.\n\nAll ranks give equal arguments, except `rank`. With a "
           "group, construction is collective and raises Mismatch on all ranks if they differ. Raises InvalidArgument.")
      .def("__len__", &Sampler::size, "Samples of this rank that are left in the epoch.")
      .def(
          "__iter__", [](const Sampler& self) { return nb::iter(nb::cast(indices_of(self))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[int]"))
      .def(
          "indices", [](const Sampler& self) { return indices_of(self); },
          "These samples, in order. With shuffle it permutes the whole data set, without the GIL.")
      .def("set_epoch", &Sampler::set_epoch, "epoch"_a,
           "Before each epoch, with the same number on all ranks; else every epoch has the same order.")
      .def_prop_ro("epoch", &Sampler::epoch);
  return sampler;
}

nb::dict state_dict(const ElasticSampler& sampler) {
  const SamplerState& state = sampler.state();
  nb::dict words;
  words["epoch"] = state.epoch;
  words["consumed"] = state.consumed;
  words["dataset_size"] = state.dataset_size;
  words["seed"] = state.seed;
  words["shuffle"] = state.shuffle;
  return words;
}

void load_state_dict(ElasticSampler& sampler, const nb::dict& words) {
  const auto fail = [](const char* name, const char* what) {
    return Error{{.code = ErrorCode::invalid_argument,
                  .attempted = "loading a sampler's state",
                  .cause = std::string("'") + name + "' " + what,
                  .hint = "give what state_dict() of an ElasticSampler gave"}};
  };
  const auto read = [&](const char* name, auto& value) {
    if (!words.contains(name)) throw fail(name, "is missing");
    if (!nb::try_cast(words[name], value)) throw fail(name, "is of another type");
  };
  SamplerState state;
  read("epoch", state.epoch);
  read("consumed", state.consumed);
  read("dataset_size", state.dataset_size);
  read("seed", state.seed);
  read("shuffle", state.shuffle);
  sampler.load(parse_sampler_state(to_string(state)));  // refuses impossible numbers
}

}  // namespace

#define DDP_SAMPLER_ARGUMENTS(remainder)                                                                         \
  "def __init__(self, dataset: int | collections.abc.Sized, group: ProcessGroup | None = None, *, ranks: int = " \
  "1, rank: int = 0, shuffle: bool = True, seed: int = 0, remainder: " DDP_REMAINDER " = '" remainder "') -> None"

void add_samplers(nb::module_& module) {
  add_sampler<DistributedSampler>(module, "DistributedSampler", "pad",
                                  "Which samples of a data set are a rank's: the indices of "
                                  "torch.utils.data.DistributedSampler of PyTorch 2.13, for "
                                  "equal arguments. For DataLoader(sampler=). Not thread-safe.",
                                  nb::sig(DDP_SAMPLER_ARGUMENTS("pad")));
  add_sampler<ElasticSampler>(module, "ElasticSampler", "uneven",
                              "A DistributedSampler whose epoch continues after a restart, even with another number of "
                              "ranks. Call record() after "
                              "each step, store state_dict() of rank 0 with the model. Not thread-safe.",
                              nb::sig(DDP_SAMPLER_ARGUMENTS("uneven")))
      .def("record", &ElasticSampler::record, "samples"_a,
           "Notes that this rank, and every other rank in the same step, has consumed this many "
           "more samples: the batch's size, after each step. Raises InvalidArgument for more than len().")
      .def("resize", &ElasticSampler::resize, "ranks"_a, "rank"_a,
           "Continues with another number of ranks, from what has been recorded.")
      .def("state_dict", &state_dict, nb::sig("def state_dict(self) -> dict[str, int]"),
           "How far all ranks together have come, whatever their number; of plain values, for json or torch.save.")
      .def("load_state_dict", &load_state_dict, "state"_a,
           nb::sig("def load_state_dict(self, state: dict[str, int]) -> None"),
           "Continues from there. Raises Mismatch when it is of another data set's size, seed or shuffle, "
           "InvalidArgument when it is not such a state.");
  module.def("rank_seed", &rank_seed, "seed"_a, "rank"_a,
             "A seed of 64 bits for this rank's dropout and augmentation, far from the other ranks'.");
}

// libddp.MetricSet and EarlyStop: metrics over all ranks, and a stop that all ranks reach together.

namespace {

using PythonMetrics = Exclusive<MetricSet>;
using PythonStop = Exclusive<EarlyStop>;

constexpr std::pair<const char*, MetricKind> kKinds[] = {
    {"mean", MetricKind::mean}, {"sum", MetricKind::sum}, {"min", MetricKind::min}, {"max", MetricKind::max}};

MetricKind kind_of(const std::string& word) {
  for (const auto& [name, kind] : kKinds) {
    if (word == name) return kind;
  }
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "making a MetricSet",
               .cause = "'" + word + "' is not a kind of metric",
               .hint = "kinds are mean, sum, min and max"}};
}

void make_metrics(PythonMetrics* place, const nb::dict& kinds) {
  std::vector<Metric> metrics;
  for (const auto& [name, kind] : kinds) {
    metrics.push_back({.name = nb::cast<std::string>(name), .kind = kind_of(nb::cast<std::string>(kind))});
  }
  new (place) PythonMetrics(std::in_place, std::move(metrics));
}

nb::dict reduce_metrics(const PythonMetrics& metrics, PythonGroup& group) {
  const auto values = interruptible([metrics, handle = *group]() mutable {
    return metrics.use("reducing metrics", [&](MetricSet& set) { return set.reduce(handle); });
  });
  nb::dict named;
  const auto& all = metrics.shared().metrics();  // never changes
  for (std::size_t each = 0; each < values.size(); ++each) {
    named[nb::str(all[each].name.c_str())] = values[each] ? nb::cast(*values[each]) : nb::none();
  }
  return named;
}

bool agree(const PythonStop& stop, PythonGroup& group, std::optional<double> value) {
  return interruptible([stop, handle = *group, value]() mutable {
    return stop.use("agreeing on the end",
                    [&](EarlyStop& shared) { return value ? shared.update(handle, *value) : shared.agree(handle); });
  });
}

}  // namespace

void add_metrics(nb::module_& module) {
  nb::class_<PythonMetrics>(
      module, "MetricSet",
      "Collects numbers on each rank, over any number of steps, and combines those of all ranks on request, in double "
      "precision and in the order of ranks: all get the same bits. One thread at a time.")
      .def(
          "__init__", &make_metrics, "kinds"_a,
          nb::sig("def __init__(self, kinds: dict[str, typing.Literal['mean', 'sum', 'min', 'max']]) -> None"),
          "kinds: of each metric, by name: {'loss': 'mean', 'samples': 'sum'}. Equal on all ranks, and in their order.")
      .def(
          "add",
          [](const PythonMetrics& metrics, const std::string& name, double value, double weight) {
            metrics.use("adding to metrics", [&](MetricSet& set) { set.add(name, value, weight); });
          },
          "name"_a, "value"_a, "weight"_a = 1.0,
          "weight: of a mean, how many samples the value is averaged over. Raises InvalidArgument for an unknown name.")
      .def("reduce", &reduce_metrics, "group"_a,
           nb::sig("def reduce(self, group: ProcessGroup) -> dict[str, float | None]"),
           "What all ranks have added since the last call; None for what none has. Starts anew. Collective: one small "
           "exchange. Raises Mismatch, on all ranks, if their metrics differ.");

  nb::class_<PythonStop>(
      module, "EarlyStop",
      "The end of a training that all ranks reach in the same step: when a number no longer gets better, or when one "
      "rank asks for it. One thread at a time.")
      .def(
          "__init__",
          [](PythonStop* place, int patience, double least_gain, bool larger_is_better) {
            new (place) PythonStop(
                std::in_place,
                EarlyStopOptions{.patience = patience, .least_gain = least_gain, .larger_is_better = larger_is_better});
          },
          nb::kw_only(), "patience"_a = 5, "least_gain"_a = 0.0, "larger_is_better"_a = false,
          "patience: the number of values in a row without improvement that ends the training. least_gain: smaller "
          "improvements are ignored.")
      .def("update", &agree, "group"_a, "value"_a,
           nb::sig("def update(self, group: ProcessGroup, value: float) -> bool"),
           "Notes a value, a validation's loss: whether all ranks stop now. NaN is never better. Collective.")
      .def(
          "agree", [](const PythonStop& stop, PythonGroup& group) { return agree(stop, group, {}); }, "group"_a,
          "The same without a value, in each step: whether any rank has called request(). Collective.")
      .def(
          "request", [](const PythonStop& stop) { stop.shared().request(); },
          "Lets the next update() or agree() stop all ranks. At any time, in a signal's handler, too.")
      .def_prop_ro("best", [](const PythonStop& stop) {
        return stop.use("asking for the best value", [](EarlyStop& shared) { return shared.best(); });
      });
}

// libddp.Checkpoints: ddp::Checkpoints on mappings from names to tensors.

namespace {

using PythonCheckpoints = Exclusive<Checkpoints>;

void make_checkpoints(PythonCheckpoints* place, PythonGroup& group, nb::handle folder, int keep, nb::handle timeout,
                      bool memory) {
  CheckpointOptions options{.keep = keep, .memory = memory};
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
      "raises Conflict with the names of both. An interrupted save leaves the previous checkpoint whole; checksums "
      "reveal damage. Tensors are those of ProcessGroup, on the CPU, of any shape, by name: numpy arrays, "
      "model.state_dict().\n\n"
      "save, save_sharded and restore are collective and block, without the GIL. All ranks raise the same Error, with "
      "the ranks concerned: SystemFailure (a file cannot be written or read), Protocol (damaged), Mismatch (of another "
      "step, model or number of ranks). One thread at a time.")
      .def("__init__", &make_checkpoints, "group"_a, "folder"_a, nb::kw_only(), "keep"_a = 3, "timeout"_a = nb::none(),
           "memory"_a = false,
           nb::sig("def __init__(self, group: ProcessGroup, folder: str | os.PathLike[str], *, keep: int = 3, timeout: "
                   "float | datetime.timedelta | None = None, memory: bool = False) -> None"),
           "keep: how many of the newest to keep; save removes older ones. 0: all. timeout: of a save or restore, in "
           "seconds; default: half an hour. memory: nodes also keep the last save in memory, and restore takes it from "
           "there when ddprun has restarted the ranks; equal on all ranks.")
      .def("save", &save<kWhole>, "step"_a, "tensors"_a, "extra"_a = nb::bytes(""),
           nb::sig("def save(self, step: int, tensors: " DDP_NAMED ", extra: bytes = b'') -> None"),
           "Rank 0's tensors and extra, which stand for all ranks'. step: >= 0, equal on all ranks; one of the same "
           "step is replaced.")
      .def("save_sharded", &save<kSharded>, "step"_a, "tensors"_a, "extra"_a = nb::bytes(""),
           nb::sig("def save_sharded(self, step: int, tensors: " DDP_NAMED ", extra: bytes = b'') -> None"),
           "Each rank's own tensors, as of a sharded optimizer. Only as many ranks can restore them.")
      .def("restore", &restore, "tensors"_a, "step"_a = nb::none(),
           nb::sig("def restore(self, tensors: " DDP_NAMED ", step: int | None = None) -> Restored | None"),
           "In place: the newest checkpoint whose files are there, or that of step; None where there is none. tensors: "
           "the names that were "
           "saved, "
           "in the same order, with the same shapes and types. Everything is verified before any tensor is touched. "
           "Raises NotFound if there is none of step.");
}

}  // namespace ddp::python
