// libddp.MetricSet and EarlyStop: numbers of all ranks, and the end that all reach together.
#include <string>
#include <utility>

#include <ddp/early_stop.hpp>
#include <ddp/metric_set.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "classes.hpp"
#include "exclusive.hpp"
#include "interruptible.hpp"

namespace ddp::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

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
               .cause = "'" + word + "' is no kind of metric",
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
          "patience: so many values in a row that are no better end the training. least_gain: what is better by no "
          "more "
          "does not count.")
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

}  // namespace ddp::python
