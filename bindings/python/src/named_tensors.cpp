#include "named_tensors.hpp"

#include <string>

#include <ddp/error.hpp>

#include "gil.hpp"

namespace ddp::python {

namespace nb = nanobind;

std::vector<NamedTensor> named_tensors(nb::handle mapping, TensorArguments& tensors, Access access) {
  if (!nb::hasattr(mapping, "items")) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "using the argument tensors",
                 .cause = "it is no mapping from names to tensors",
                 .hint = "give a dict, such as model.state_dict()"}};
  }
  std::vector<NamedTensor> named;
  const nb::object items = call_python(nb::getattr(mapping, "items"), nb::tuple());
  for (const nb::handle item : nb::borrow<nb::iterable>(items)) {
    auto name = nb::cast<std::string>(nb::str(nb::handle(item[0])));
    const std::string called = "tensors['" + name + "']";
    TensorView view = tensors.add(nb::object(item[1]), called.c_str(), access);
    named.push_back({.name = std::move(name), .tensor = std::move(view)});
  }
  return named;
}

std::string path_of(nb::handle object) {
  const nb::object path = call_python(nb::module_::import_("os").attr("fsencode"), nb::make_tuple(object));
  const auto bytes = nb::borrow<nb::bytes>(path);
  return {bytes.c_str(), bytes.size()};
}

}  // namespace ddp::python
