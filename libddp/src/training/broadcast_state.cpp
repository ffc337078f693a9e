#include <ddp/broadcast_state.hpp>

#include <vector>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/reducer.hpp>

#include "reducer/parameter_check.hpp"

namespace ddp {

void broadcast_state(ProcessGroup& group, std::span<const NamedTensor> tensors, int root,
                     std::optional<Stream> stream) {
  std::vector<Parameter> compared;
  std::vector<TensorView> views;
  for (const NamedTensor& tensor : tensors) {
    compared.push_back({.name = tensor.name, .value = tensor.tensor});
    views.push_back(tensor.tensor);
  }
  reducer::verify_parameters(group, compared, fmt::format("root {}", root));
  broadcast_coalesced(group, views, root, stream);
}

}  // namespace ddp
