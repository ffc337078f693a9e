#include "reducer/call_check.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"

namespace ddp::reducer {

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
