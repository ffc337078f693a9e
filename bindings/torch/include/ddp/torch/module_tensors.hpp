// What is averaged, compared and broadcast of a module: its parameters and buffers, each once, except
// those ignored.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <ddp/reducer.hpp>
#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  ///< its gradient
};

/// Lists a tensor that several submodules share once, under its first name.
template <class Dictionary>
std::vector<NamedTensor> distinct_tensors(const Dictionary& dictionary, const std::set<std::string>& ignored) {
  std::vector<NamedTensor> found;
  std::set<const void*> seen;
  for (const auto& item : dictionary) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    if (!ignored.contains(item.key())) found.push_back({.name = item.key(), .tensor = item.value()});
  }
  return found;
}

/// Throws Error(invalid_argument) for parameters that cannot be averaged.
inline std::vector<Parameter> reducer_parameters(const std::vector<NamedTensor>& tensors) {
  std::vector<Parameter> parameters;
  std::map<const void*, std::string> memory;
  for (const auto& [name, tensor, sparse] : tensors) {
    const std::string attempted = "wrapping a module with the parameter '" + name + "'";
    const bool differentiable = tensor.requires_grad();
    const TensorView value = differentiable ? memory_of(tensor, attempted) : bytes_of(tensor, attempted);
    if (differentiable && value.numel() > 0) {
      const auto [other, is_new] = memory.try_emplace(value.data(), name);
      if (!is_new) {
        throw_invalid_argument(attempted, "it has the memory of '" + other->second + "', but is another tensor",
                               "register one tensor under both names");
      }
    }
    std::vector<std::int64_t> strides;
    if (!tensor.is_contiguous()) strides = tensor.strides().vec();
    parameters.push_back({.name = name,
                          .value = value,
                          .strides = std::move(strides),
                          .requires_gradient = differentiable,
                          .sparse_gradient = sparse && differentiable});
  }
  return parameters;
}

/// Copies rank 0's buffers to all ranks with @p broadcast, which gets their memory.
template <class Broadcast>
void with_memory_of(const std::vector<NamedTensor>& buffers, Broadcast broadcast) {
  const ::at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense;
  std::vector<TensorView> memory;
  for (const auto& [name, tensor, sparse] : buffers) {
    dense.push_back(tensor.is_contiguous() ? tensor : tensor.contiguous());
    memory.push_back(bytes_of(dense.back(), "broadcasting the buffer '" + name + "'"));
  }
  broadcast(memory);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    // Not a write that autograd counts: graphs of earlier forward passes may hold the buffer.
    if (!dense[i].is_same(buffers[i].tensor)) buffers[i].tensor.variable_data().copy_(dense[i]);
  }
}

/// The properties that parameters had when they were wrapped.
class WrappedAs {
 public:
  explicit WrappedAs(const std::vector<NamedTensor>& tensors) {
    for (const auto& [name, tensor, sparse] : tensors) {
      given_.push_back({tensor.data_ptr(), tensor.scalar_type(), tensor.device(), tensor.requires_grad()});
    }
  }

  /// Throws Error(invalid_argument) if a parameter has another element type or device, for which autograd has made a
  /// new gradient accumulator, or requires a gradient that it did not.
  void check_kind(const std::vector<NamedTensor>& tensors) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& now = tensors[i].tensor;
      const Given& before = given_[i];
      if (now.scalar_type() != before.type || now.device() != before.device) {
        throw_invalid_argument(kPass,
                               "parameter '" + tensors[i].name + "' has become " + description_of(now) +
                                   " since it was wrapped as " + at::toString(before.type) + " on " +
                                   before.device.str(),
                               "convert or move the module first, and wrap it again, on all ranks");
      }
      if (now.requires_grad() && !before.differentiable) {
        throw_invalid_argument(kPass, "parameter '" + tensors[i].name + "' has been unfrozen since it was wrapped",
                               "wrap the module again, on all ranks: its gradient would not be averaged");
      }
    }
  }

  /// Throws Error(invalid_argument) if a parameter has other memory.
  void check_memory(const std::vector<NamedTensor>& tensors, const std::string& attempted) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].tensor.data_ptr() == given_[i].memory) continue;
      throw_invalid_argument(attempted, "parameter '" + tensors[i].name + "' has moved since it was wrapped",
                             "load or convert the module before DistributedDataParallel wraps it");
    }
  }

 private:
  static constexpr auto kPass = "starting a forward pass";

  struct Given {
    const void* memory;
    at::ScalarType type;
    at::Device device;
    bool differentiable;
  };
  std::vector<Given> given_;
};

// ---- What a forward pass returned: its tensors, and the part of the autograd graph that they reach.

/// Appends the tensors of @p value to @p found; false if its type is unknown. A program adds its own
/// type with a function collect_tensors(const Type&, std::vector<at::Tensor>&) beside it.
template <class Value>
bool find_tensors(const Value& value, std::vector<at::Tensor>& found) {
  const auto find_in_all = [&](const auto&... parts) { return (find_tensors(parts, found) & ... & true); };
  if constexpr (std::is_convertible_v<const Value&, at::Tensor>) {
    found.push_back(value);
    return true;
  } else if constexpr (requires { collect_tensors(value, found); }) {
    collect_tensors(value, found);
    return true;
  } else if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
    return true;
  } else if constexpr (requires {
                         value.has_value();
                         *value;
                       }) {
    return !value.has_value() || find_tensors(*value, found);
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return std::apply(find_in_all, value);
  } else if constexpr (requires {
                         value.begin()->key();
                         value.begin()->value();
                       }) {  // torch::OrderedDict
    bool known = true;
    for (const auto& item : value) known = find_tensors(item.value(), found) && known;
    return known;
  } else if constexpr (requires {
                         typename Value::mapped_type;
                         value.begin();
                       }) {
    bool known = true;
    for (const auto& [key, mapped] : value) known = find_tensors(mapped, found) && known;
    return known;
  } else if constexpr (requires {
                         value.begin();
                         value.end();
                       }) {
    bool known = true;
    for (const auto& part : value) known = find_tensors(part, found) && known;
    return known;
  } else {
    return false;
  }
}

/// All nodes of the graph that a backward pass from @p outputs can reach.
inline std::unordered_set<const ::torch::autograd::Node*> reachable_nodes(const std::vector<at::Tensor>& outputs) {
  std::unordered_set<const ::torch::autograd::Node*> seen;
  std::vector<const ::torch::autograd::Node*> waiting;
  const auto visit = [&](const ::torch::autograd::Edge& edge) {
    const ::torch::autograd::Node* const node = edge.function.get();
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) visit(::torch::autograd::impl::gradient_edge(output));
  }
  while (!waiting.empty()) {
    const ::torch::autograd::Node* const node = waiting.back();
    waiting.pop_back();
    for (const ::torch::autograd::Edge& edge : node->next_edges()) visit(edge);
  }
  return seen;
}

}  // namespace ddp::torch
