// What autograd calls, and the errors that leave it there: a binding of another language turns them into its own.
#pragma once

#include <atomic>

#include <ddp/error.hpp>

namespace ddp::torch {

/// Called while an Error is being handled; throws what shall leave the backward pass in its place.
using TranslateError = void (*)(const Error&);
/// Null: errors leave as they are. Set once, before the first backward pass.
inline std::atomic<TranslateError> translate_error{nullptr};

/// From any thread of autograd's.
template <class Call>
void called_by_autograd(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    if (const TranslateError translate = translate_error.load(std::memory_order_acquire)) translate(error);
    throw;
  }
}

}  // namespace ddp::torch
