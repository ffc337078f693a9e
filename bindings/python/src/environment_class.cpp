// libddp.EnvironmentReport and the flight recorder: what is wrong in a job, and what it did last.
#include <string>

#include <ddp/diagnostics.hpp>
#include <ddp/flight_recorder.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "classes.hpp"
#include "interruptible.hpp"
#include "named_tensors.hpp"

namespace ddp::python {

namespace nb = nanobind;
using namespace nb::literals;

void add_environment(nb::module_& module) {
  nb::class_<EnvironmentFinding>(
      module, "EnvironmentFinding",
      "Something that is wrong with environment variables, or nearly surely not what was meant.")
      .def_ro("rule", &EnvironmentFinding::rule, "'env-misspelt'; docs/ddp-info.md lists them.")
      .def_ro("error", &EnvironmentFinding::error, "The job fails or hangs by it; else a warning.")
      .def_ro("variable", &EnvironmentFinding::variable)
      .def_ro("text", &EnvironmentFinding::text)
      .def_ro("remedy", &EnvironmentFinding::remedy, "What to do; empty: see text.")
      .def_ro("ranks", &EnvironmentFinding::ranks, "World ranks, ascending.")
      .def("__repr__", [](const EnvironmentFinding& finding) {
        return "<libddp.EnvironmentFinding " + finding.rule + ": " + finding.text + ">";
      });

  nb::class_<EnvironmentReport>(module, "EnvironmentReport",
                                "Environments of ranks, with equal ones together. World.environment_report() has the "
                                "job's. Secrets are left out.")
      .def_static(
          "of_process",
          [](bool all) {
            const WithoutGil released;
            return EnvironmentReport::of_process(all);
          },
          "all"_a = false,
          "This process alone, as it was started and setenv has changed it. all: also variables that have nothing to "
          "do "
          "with training.")
      .def_ro("hosts", &EnvironmentReport::hosts, "By rank.")
      .def_ro("findings", &EnvironmentReport::findings, "Errors first.")
      .def("to_text", &EnvironmentReport::to_text, "A table for people.")
      .def("to_json", &EnvironmentReport::to_json, "docs/ddp-info.md describes it.");

  module.def(
      "flight_recorder_json", &flight_recorder_json,
      "The last operations of all process groups of this process, as a JSON document. Raises InvalidArgument for a "
      "wrong DDP_FLIGHT_SIZE.");
  module.def(
      "dump_flight_recorder",
      [](nb::handle path) {
        const std::string file = path_of(path);
        const WithoutGil released;
        dump_flight_recorder(file);
      },
      "path"_a, nb::sig("def dump_flight_recorder(path: str | os.PathLike[str]) -> None"),
      "Writes that document to a file, for ddp-info flight. Raises SystemFailure.");
}

}  // namespace ddp::python
