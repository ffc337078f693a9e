// What of a module is averaged, compared and broadcast: its parameters and buffers, each once, without the ignored
// ones.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ddp/reducer.hpp>

#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  ///< its gradient
};

/// A tensor that several submodules have comes once, under its first name.
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

/// Throws Error(invalid_argument) for those that cannot be averaged.
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

/// Brings rank 0's buffers to all ranks by @p broadcast, which gets their memory.
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

/// What parameters were when they were wrapped.
class WrappedAs {
 public:
  explicit WrappedAs(const std::vector<NamedTensor>& tensors) {
    for (const auto& [name, tensor, sparse] : tensors) {
      given_.push_back({tensor.data_ptr(), tensor.scalar_type(), tensor.device(), tensor.requires_grad()});
    }
  }

  /// Throws Error(invalid_argument) where a parameter has another element type or device, whose accumulator of
  /// gradients autograd has made anew, or requires a gradient that it did not.
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

  /// Throws Error(invalid_argument) where a parameter has other memory.
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

}  // namespace ddp::torch
