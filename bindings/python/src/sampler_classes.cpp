// libddp.DistributedSampler and ElasticSampler: samplers for torch.utils.data.DataLoader, without torch.
#include <string>

#include <ddp/elastic_sampler.hpp>
#include <ddp/rank_seed.hpp>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "classes.hpp"
#include "interruptible.hpp"

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
               .cause = "'" + remainder + "' is no way to deal what is left",
               .hint = "give pad, drop or uneven"}};
}

/// A number of samples, or what has one.
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

/// Of a copy, since other threads may run meanwhile.
template <class Sampler>
std::vector<std::int64_t> indices_of(Sampler sampler) {
  const WithoutGil released;
  return sampler.indices();
}

/// What both have.
template <class Sampler>
nb::class_<Sampler> add_sampler(nb::module_& module, const char* name, const char* remainder, const char* about,
                                const nb::sig& signature) {
  nb::class_<Sampler> sampler(module, name, about);
  sampler
      .def("__init__", &construct<Sampler>, "dataset"_a, "group"_a = nb::none(), nb::kw_only(), "ranks"_a = 1,
           "rank"_a = 0, "shuffle"_a = true, "seed"_a = 0, "remainder"_a = remainder, signature,
           "dataset: its len(), or how many samples it has. group: who shares them; without it, `ranks` and `rank` say "
           "it.\n"
           "remainder: 'pad' gives the first samples again until all ranks have as many, 'drop' leaves out what "
           "remains, 'uneven' gives the first ranks one more.\n\nArguments are equal on all ranks but `rank`. With a "
           "group construction is collective, and raises Mismatch on all ranks if they are not. Raises "
           "InvalidArgument.")
      .def("__len__", &Sampler::size, "Samples of this rank that are left in the epoch.")
      .def(
          "__iter__", [](const Sampler& self) { return nb::iter(nb::cast(indices_of(self))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[int]"))
      .def(
          "indices", [](const Sampler& self) { return indices_of(self); },
          "Them, in order. With shuffle it permutes the whole data set, without the GIL.")
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
  sampler.load(parse_sampler_state(to_string(state)));  // which refuses impossible numbers
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
  add_sampler<ElasticSampler>(
      module, "ElasticSampler", "uneven",
      "A DistributedSampler whose epoch goes on after a restart, and with another number of ranks. Call record() after "
      "each step, store state_dict() of rank 0 with the model. Not thread-safe.",
      nb::sig(DDP_SAMPLER_ARGUMENTS("uneven")))
      .def(
          "record", &ElasticSampler::record, "samples"_a,
          "This rank, and each other at the same time, has consumed so many samples more: the batch's size, after each "
          "step. Raises InvalidArgument for more than len().")
      .def("resize", &ElasticSampler::resize, "ranks"_a, "rank"_a,
           "Goes on with other ranks, from what has been recorded.")
      .def("state_dict", &state_dict, nb::sig("def state_dict(self) -> dict[str, int]"),
           "How far all ranks together have come, whatever their number; of plain values, for json or torch.save.")
      .def(
          "load_state_dict", &load_state_dict, "state"_a,
          nb::sig("def load_state_dict(self, state: dict[str, int]) -> None"),
          "Goes on from there. Raises Mismatch when it is of another data set's size, seed or shuffle, InvalidArgument "
          "when it is no such state.");
  module.def("rank_seed", &rank_seed, "seed"_a, "rank"_a,
             "A seed of 64 bits for this rank's dropout and augmentation, far from the other ranks'.");
}

}  // namespace ddp::python
