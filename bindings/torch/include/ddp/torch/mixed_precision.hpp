// Computes in a shorter floating-point type than the one that parameters are kept and stepped in: copies take
// the parameters' place while a pass runs.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <ddp/torch/module_tensors.hpp>

namespace ddp::torch {

/// Element types of a module under DistributedDataParallel; none: unchanged. Only floating-point tensors are converted,
/// not complex ones.
struct MixedPrecision {
  /// For parameters and inputs in forward and backward passes. Between passes, parameters and their gradients have the
  /// parameters' own type. Costs memory for a copy of the parameters in this type.
  std::optional<at::ScalarType> param{};
  /// The type that gradients are exchanged and added in: float32, float16 or bfloat16. Default: like param.
  std::optional<at::ScalarType> reduce{};
  /// For buffers, from construction on.
  std::optional<at::ScalarType> buffer{};
};

/// The copies. Parameters' tensors stay the same objects; only their memory changes, and their gradient accumulators,
/// of which autograd has one per type. One thread at a time.
class LowPrecisionParameters {
 public:
  using Accumulator = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  LowPrecisionParameters(const std::vector<NamedTensor>& tensors, at::ScalarType type) : type_(type) {
    for (const auto& [name, tensor, sparse] : tensors) {
      parameters_.push_back({.tensor = tensor, .master = tensor.variable_data()});
      if (!tensor.is_floating_point() || tensor.scalar_type() == type) continue;
      Each& each = parameters_.back();
      each.low = at::empty_like(each.master, each.master.options().dtype(type).requires_grad(false));
      if (!tensor.requires_grad()) continue;
      at::Tensor(tensor).set_data(each.low);
      each.accumulator = ::torch::autograd::impl::grad_accumulator(tensor);
      at::Tensor(tensor).set_data(each.master);
    }
  }

  /// The accumulator that a parameter has while its copy is in its place; null if it has no copy.
  const Accumulator& accumulator(std::size_t index) const { return parameters_[index].accumulator; }
  /// The parameter's own memory, in its own type and layout.
  const at::Tensor& master(std::size_t index) const { return parameters_[index].master; }
  at::ScalarType type() const noexcept { return type_; }

  /// While one of these lives, the copies are in the parameters' place.
  class [[nodiscard]] Hold {
   public:
    /// @param refresh copies the parameters' values: not for the backward pass of a forward pass that copied them.
    Hold(std::shared_ptr<LowPrecisionParameters> parameters, bool refresh) : parameters_(std::move(parameters)) {
      if (parameters_) parameters_->enter(refresh);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { end(); }
    void end() {
      if (const auto parameters = std::exchange(parameters_, nullptr)) parameters->leave();
    }

   private:
    std::shared_ptr<LowPrecisionParameters> parameters_;
  };

 private:
  struct Each {
    at::Tensor tensor;  ///< the module's
    at::Tensor master;  ///< the memory in which the parameter is kept
    at::Tensor low;     ///< undefined: computed with as it is
    Accumulator accumulator;
  };

  template <class Weak>
  static void set_accumulator(void (*set)(const at::Tensor&, Weak), const Each& each) {
    set(each.tensor, Weak(each.accumulator));
  }

  void enter(bool refresh) {
    if (depth_++ > 0) return;
    const at::NoGradGuard no_grad;
    for (Each& each : parameters_) {
      each.master = each.tensor.variable_data();  // torch::load and to() give others
      if (!each.low.defined()) continue;
      if (refresh) each.low.copy_(each.master);
      each.tensor.set_data(each.low);
      if (each.accumulator) set_accumulator(&::torch::autograd::impl::set_grad_accumulator, each);
    }
  }
  void leave() {
    if (--depth_ > 0) return;
    for (Each& each : parameters_) {
      if (each.low.defined()) each.tensor.set_data(each.master);
    }
  }

  at::ScalarType type_;
  std::vector<Each> parameters_;
  int depth_ = 0;
};

[[noreturn]] inline void refuse_hidden_outputs() {
  throw_invalid_argument(
      "computing in mixed precision", "the forward pass returns a type that may hide tensors",
      "return tensors in lists, maps and tuples (Python: also dataclasses), or write collect_tensors() for "
      "it in C++: parameters change type when a backward pass reaches them");
}

/// Converts buffers for good.
inline void cast_buffers(const std::vector<NamedTensor>& buffers, at::ScalarType type) {
  for (const auto& [name, tensor, sparse] : buffers) {
    if (!tensor.is_floating_point()) continue;
    const at::Tensor before = tensor.variable_data();
    at::Tensor(tensor).set_data(before.to(type));
    if (const auto device = cuda_device_of(before))
      keep_for(current_stream(*device), before);  // another stream's, maybe
  }
}

/// An argument of a forward pass, of the same kind (lvalue, const, rvalue). Tensors, also in a vector or an optional,
/// are converted to @p type; everything else stays as it is.
template <class Argument>
class CastArgument {
 public:
  CastArgument(Argument&& argument, at::ScalarType type) : value_(cast(std::forward<Argument>(argument), type)) {}
  Argument&& get() { return static_cast<Argument&&>(value_); }

 private:
  using Value = std::remove_cvref_t<Argument>;
  static constexpr bool kIsCast = std::is_same_v<Value, at::Tensor> ||
                                  std::is_same_v<Value, std::optional<at::Tensor>> ||
                                  std::is_same_v<Value, std::vector<at::Tensor>>;

  static at::Tensor cast_tensor(const at::Tensor& tensor, at::ScalarType type) {
    return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
  }
  static decltype(auto) cast(Argument&& argument, at::ScalarType type) {
    if constexpr (std::is_same_v<Value, at::Tensor>) {
      return cast_tensor(argument, type);
    } else if constexpr (kIsCast) {
      Value copy = argument;
      if constexpr (std::is_same_v<Value, std::vector<at::Tensor>>) {
        for (at::Tensor& tensor : copy) tensor = cast_tensor(tensor, type);
      } else if (copy) {
        copy = cast_tensor(*copy, type);
      }
      return copy;
    } else {
      return std::forward<Argument>(argument);
    }
  }

  std::conditional_t<kIsCast, Value, Argument&&> value_;
};

}  // namespace ddp::torch
