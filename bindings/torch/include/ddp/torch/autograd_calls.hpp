// What autograd calls, and what leaves it there: a binding of another language turns errors into its own, and looks for
// its signals meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <ddp/error.hpp>
#include <ddp/wait_watch.hpp>

namespace ddp::torch {

/// Called while an Error is being handled; throws what shall leave the backward pass in its place.
using TranslateError = void (*)(const Error&);
/// Null: errors leave as they are. Set once, before the first backward pass.
inline std::atomic<TranslateError> translate_error{nullptr};
/// Of the WaitWatch in backward passes. Null: none. Set once, too.
inline std::atomic<ddp::WaitWatch::Look> look_in_backward{nullptr};

/// From any thread of autograd's.
template <class Call>
void called_by_autograd(Call&& call) {
  const ddp::WaitWatch watch(look_in_backward.load(std::memory_order_acquire));
  try {
    call();
  } catch (const Error& error) {
    if (const TranslateError translate = translate_error.load(std::memory_order_acquire)) translate(error);
    throw;
  }
}

/// When a backward pass comes to a node.
struct BeforeNode final : ::torch::autograd::FunctionPreHook {
  using Gradients = ::torch::autograd::variable_list;

  explicit BeforeNode(std::function<void()> function) : call(std::move(function)) {}
  Gradients operator()(const Gradients& gradients) override {
    called_by_autograd(call);
    return gradients;
  }
  std::function<void()> call;
};

/// When it is done with a node that accumulates a gradient.
struct AfterNode final : ::torch::autograd::FunctionPostHook {
  using Gradients = ::torch::autograd::variable_list;

  explicit AfterNode(std::function<void(bool defined)> function) : call(std::move(function)) {}
  Gradients operator()(const Gradients& outputs, const Gradients& inputs) override {
    called_by_autograd([&] { call(!inputs.empty() && inputs[0].defined()); });
    return outputs;
  }
  std::function<void(bool defined)> call;
};

using AccumulatorPointer = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// The node that adds to a parameter's gradient, with a hook.
struct Accumulator {
  std::size_t parameter;
  AccumulatorPointer node;  ///< autograd itself keeps it for the time of a backward pass only
  std::uintptr_t hook;
};

}  // namespace ddp::torch
