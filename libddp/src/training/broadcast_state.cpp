#include <ddp/broadcast_state.hpp>

#include <vector>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/reducer.hpp>

#include "reducer/parameter_check.hpp"
#include "training/state_check.hpp"

namespace ddp {

void training::verify_state(ProcessGroup& group, std::span<const NamedTensor> tensors, const std::string& call) {
  std::vector<Parameter> compared;
  for (const NamedTensor& each : tensors) compared.push_back({.name = each.name, .value = each.tensor});
  reducer::verify_parameters(group, compared, call);
}

void broadcast_state(ProcessGroup& group, std::span<const NamedTensor> tensors, int root,
                     std::optional<Stream> stream) {
  training::verify_state(group, tensors, fmt::format("root {}", root));
  std::vector<TensorView> views;
  for (const NamedTensor& each : tensors) views.push_back(each.tensor);
  broadcast_coalesced(group, views, root, stream);
}

}  // namespace ddp
