#include "reducer/parameter_list.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "reducer/options_check.hpp"

namespace ddp::reducer {
namespace {

constexpr auto kMaking = "making a Reducer";

void check_sparse(const Parameter& parameter, const ReducerOptions& options) {
  const auto refuse = [&](const char* cause, const char* hint) {
    base::throw_invalid_argument(kMaking, fmt::format("'{}' has sparse_gradient, but {}", parameter.name, cause), hint);
  };
  if (parameter.value.shape().empty()) refuse("no dimensions", "a scalar has no rows");
  if (!parameter.strides.empty()) refuse("its rows do not lie one after the other", "make it contiguous");
  if (parameter.gradient.data() != nullptr) refuse("memory for a dense one", "give it to mark_ready");
  if (options.comm_hook && (options.comm_hook->takes_leaves() || options.comm_hook->needs_all_parameters())) {
    refuse("the hook needs all gradients in buckets", "leave it dense, or take another hook");
  }
}

void check_parameter(const Parameter& parameter, const ReducerOptions& options) {
  if (!parameter.requires_gradient) return;
  if (parameter.value.device().type == DeviceType::cuda && options.comm_hook && !options.comm_hook->serves_cuda()) {
    base::throw_invalid_argument(kMaking,
                                 fmt::format("'{}' is on a CUDA device, where the hook '{}' takes no gradients",
                                             parameter.name, options.comm_hook->name()),
                                 "take one of libddp's; a hook of your own says that it does by serves_cuda()");
  }
  if (parameter.value.dtype() == DType::boolean) {
    base::throw_invalid_argument(kMaking, fmt::format("'{}' is boolean, which has no average", parameter.name),
                                 "leave it out");
  }
  if (parameter.sparse_gradient) return check_sparse(parameter, options);
  const DType type = parameter.value.dtype();
  const DType exchanged = exchanged_as(type, options);
  if (type != exchanged && type != DType::float32 && exchanged != DType::float32) {
    base::throw_invalid_argument(
        kMaking,
        fmt::format("'{}' is {}, which cannot be reduced in {}", parameter.name, to_string(type), to_string(exchanged)),
        "set reduce_dtype to float32, or to its own type");
  }
  if (parameter.gradient.data() == nullptr) return;
  if (parameter.value.dtype() != parameter.gradient.dtype() ||
      !std::ranges::equal(parameter.value.shape(), parameter.gradient.shape())) {
    base::throw_invalid_argument(kMaking,
                                 fmt::format("the gradient of '{}' is {}, but its value is {}", parameter.name,
                                             parameter.gradient.description(), parameter.value.description()),
                                 "a gradient must have the shape and element type of its parameter");
  }
  if (parameter.gradient.device() != parameter.value.device()) {
    base::throw_invalid_argument(
        kMaking, fmt::format("the gradient of '{}' is on another device than its value", parameter.name),
        "put both on one");
  }
  if (options.gradient_as_bucket_view && parameter.gradient.numel() > 0) {
    base::throw_invalid_argument(kMaking, fmt::format("the gradient of '{}' has memory of its own", parameter.name),
                                 "with gradient_as_bucket_view give gradients without memory, and use bucket_view()");
  }
}

/// Gradients that share bytes, but not as one shared parameter, would be averaged more than once.
void check_overlaps(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& owners) {
  std::vector<std::size_t> order;
  for (const std::size_t index : owners) {
    const TensorView& gradient = parameters[index].gradient;
    if (gradient.data() != nullptr && gradient.numel() > 0) order.push_back(index);
  }
  const auto begin = [&](std::size_t index) { return static_cast<std::byte*>(parameters[index].gradient.data()); };
  std::ranges::sort(order, {}, begin);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Parameter& before = parameters[order[i - 1]];
    if (begin(order[i - 1]) + before.gradient.size_bytes() <= begin(order[i])) continue;
    base::throw_invalid_argument(kMaking,
                                 fmt::format("the gradients of '{}' and '{}' share memory, but their values do not",
                                             before.name, parameters[order[i]].name),
                                 "give each parameter a gradient of its own");
  }
}

}  // namespace

ParameterList::ParameterList(const std::vector<Parameter>& parameters, const ReducerOptions& options)
    : owner_(parameters.size(), kNone), names_(parameters.size(), 0) {
  if (parameters.empty())
    base::throw_invalid_argument(kMaking, "there are no parameters", "pass those that need a gradient");
  std::map<const void*, std::size_t> by_memory;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    check_parameter(parameter, options);
    if (!parameter.requires_gradient) continue;
    on_cpu_ = on_cpu_ && parameter.value.device().type == DeviceType::cpu;
    owner_[i] = i;
    if (parameter.value.data() != nullptr && parameter.value.numel() > 0) {
      owner_[i] = by_memory.try_emplace(parameter.value.data(), i).first->second;
    }
    ++names_[owner_[i]];
    if (owner_[i] == i) {
      owners_.push_back(i);
      continue;
    }
    const Parameter& first = parameters[owner_[i]];
    if (parameter.sparse_gradient == first.sparse_gradient && parameter.gradient.data() == first.gradient.data() &&
        parameter.value.numel() == first.value.numel() && parameter.value.dtype() == first.value.dtype()) {
      continue;
    }
    base::throw_invalid_argument(kMaking,
                                 fmt::format("'{}' and '{}' share the memory of their values, but not of their "
                                             "gradients, or are of different size",
                                             first.name, parameter.name),
                                 "give the names of a shared parameter the same value and gradient");
  }
  if (owners_.empty()) {
    base::throw_invalid_argument(kMaking, fmt::format("none of {} parameters requires a gradient", parameters.size()),
                                 "a model without them needs no Reducer");
  }
  check_overlaps(parameters, owners_);
}

std::vector<std::uint32_t> ParameterList::names_in(std::span<const std::size_t> indices) const {
  std::vector<std::uint32_t> names(owner_.size());
  std::vector<bool> seen(owner_.size());
  for (const std::size_t index : indices) {
    if (!seen[index]) ++names[owner_[index]];
    seen[index] = true;
  }
  return names;
}

std::vector<std::size_t> ParameterList::complete_order(std::span<const std::size_t> order) const {
  std::vector<std::size_t> complete;
  std::vector<bool> seen(owner_.size());
  for (auto index = order.rbegin(); index != order.rend(); ++index) {
    const std::size_t owner = owner_[*index];
    if (owner == kNone || seen[owner]) continue;
    seen[owner] = true;
    complete.push_back(owner);
  }
  std::ranges::reverse(complete);
  for (const std::size_t owner : owners_) {
    if (!seen[owner]) complete.push_back(owner);
  }
  return complete;
}

std::size_t CallCheck::owner_of(std::size_t index, const char* attempted) const {
  if (index >= parameters_.size()) {
    base::throw_invalid_argument(attempted, fmt::format("there is no parameter {} of {}", index, parameters_.size()),
                                 "");
  }
  const std::size_t owner = list_.owner(index);
  if (owner != ParameterList::kNone) return owner;
  base::throw_invalid_argument(attempted, fmt::format("'{}' requires no gradient", parameters_[index].name), "");
}

void CallCheck::unused(std::span<const std::size_t> indices) const {
  if (indices.empty()) return;
  constexpr auto kAttempted = "starting a backward pass";
  if (!options_.find_unused_parameters) {
    base::throw_invalid_argument(kAttempted, fmt::format("{} parameters are given as unused", indices.size()),
                                 "set find_unused_parameters");
  }
  for (const std::size_t index : indices) static_cast<void>(owner_of(index, kAttempted));
}

void CallCheck::refuse_mark(std::size_t index, std::string cause, std::string hint) const {
  base::throw_invalid_argument(fmt::format("marking the gradient of '{}' ready", parameters_[index].name),
                               std::move(cause), std::move(hint));
}

void CallCheck::gradient(std::size_t index, const void* own, const TensorView* given) const {
  const TensorView& expected = parameters_[list_.owner(index)].value;
  if (given == nullptr) {
    if (own == nullptr && expected.numel() > 0) {
      refuse_mark(index, "it has no memory", "give the gradient to mark_ready");
    }
  } else if (given->dtype() != expected.dtype() || given->numel() != expected.numel() ||
             given->device() != expected.device()) {
    refuse_mark(index, fmt::format("expected {}, got {}", expected.description(), given->description()),
                "a gradient must have the size, element type and device of its parameter");
  }
}

void CallCheck::producer(std::size_t index, const Stream& producer) const {
  const TensorView& expected = parameters_[list_.owner(index)].value;
  if (expected.device().type == DeviceType::cuda && producer.device == expected.device()) return;
  refuse_mark(index, "its producer is a stream of another device",
              expected.device().type == DeviceType::cpu
                  ? "leave it out: gradients on the CPU are computed by the caller"
                  : "give a stream of the gradient's device");
}

void CallCheck::place(std::size_t index, bool in_step, const TensorView& gradient) const {
  const TensorView& expected = parameters_[list_.owner(index)].value;
  const auto refuse = [&](std::string cause, std::string hint) {
    base::throw_invalid_argument(fmt::format("placing the gradient of '{}'", parameters_[index].name), std::move(cause),
                                 std::move(hint));
  };
  if (in_step) refuse("a backward pass runs", "place it before prepare_for_backward()");
  if (options_.gradient_as_bucket_view && !options_.moved_in)
    refuse("gradients are in the buckets", "compute it at bucket_view()");
  if (gradient.data() == nullptr) return;
  if (gradient.dtype() != expected.dtype() || gradient.numel() != expected.numel() ||
      gradient.device() != expected.device()) {
    refuse(fmt::format("expected {}, got {}", expected.description(), gradient.description()),
           "a gradient must have the size, element type and device of its parameter");
  }
}

void CallCheck::throw_outside(std::size_t index) const {
  static_cast<void>(owner_of(index, "marking a gradient ready"));
  refuse_mark(index, "no backward pass has been started",
              "call prepare_for_backward() first; a forward pass that goes around the wrapper does not");
}

void CallCheck::throw_excess(std::size_t index, std::uint32_t needed) const {
  std::string cause = needed <= 1
                          ? fmt::format("parameter {} was marked ready before in this step", index)
                          : fmt::format("parameter {} was marked ready {} times before in this step", index, needed);
  std::string hint = "mark a parameter once, when its gradient is final, or set static_graph";
  if (options_.static_graph) {
    cause = fmt::format("parameter {} is marked more often than in the first step: {}", index, needed);
    hint = "static_graph needs the same graph in every step";
  } else if (options_.find_unused_parameters) {
    hint += "; do not give parameters as unused that get a gradient";
  }
  refuse_mark(index, std::move(cause), std::move(hint));
}

}  // namespace ddp::reducer
