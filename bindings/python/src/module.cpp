// The extension module libddp._core.
#include <ddp/python_prefix.hpp>
#include <ddp/version.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "classes.hpp"
#include "completion_queue.hpp"
#include "errors.hpp"

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace nb::literals;
  // Programs end with groups and operations in their frames; that is no leak.
  nb::set_leak_warnings(false);
  ddp::python::translate_errors();
  ddp::set_python_prefix(nb::cast<std::string>(nb::module_::import_("sys").attr("prefix")));
  ddp::python::add_work(module);
  ddp::python::add_store(module);
  ddp::python::add_group(module);
  ddp::python::add_named(module);
  ddp::python::add_samplers(module);
  ddp::python::add_metrics(module);
  ddp::python::add_checkpoints(module);
  ddp::python::add_topology(module);
  ddp::python::add_environment(module);
  ddp::python::add_world(module);
  module.def("version", &ddp::version, "Version of the loaded C++ library.");
  module.def("release_dropped_objects", &ddp::python::release_dropped_objects,
             "Releases the tensors of operations that have ended. Every operation does it, too.");
  module.def(
      "use_storage_functions",
      [](const nb::capsule& functions) {
        ddp::python::storage_functions =
            static_cast<const ddp::python::StorageFunctions*>(functions.data("libddp.storage_functions"));
      },
      "functions"_a, "Takes functions of the adapter to PyTorch, by which memory in use keeps its size.");
  module.def("has_storage_functions", [] { return ddp::python::storage_functions != nullptr; });
  module.def("set_leak_warnings", &nb::set_leak_warnings, "on"_a, "nanobind's words at exit, for tests.");
}
