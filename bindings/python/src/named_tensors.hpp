// Python's mappings from names to tensors, as state_dict() gives them.
#pragma once

#include <string_view>
#include <vector>

#include <ddp/broadcast_state.hpp>

#include <nanobind/nanobind.h>

#include "tensor_argument.hpp"

namespace ddp::python {

/// What type checkers are told of them.
#define DDP_NAMED "collections.abc.Mapping[str, libddp._types.Tensor]"

/// The tensors of @p mapping in its order; @p tensors keeps them. Throws Error(invalid_argument) that names the entry.
std::vector<NamedTensor> named_tensors(nanobind::handle mapping, TensorArguments& tensors, Access access);

/// The bytes of @p object, a str or os.PathLike. Throws TypeError.
std::string path_of(nanobind::handle object);

}  // namespace ddp::python
