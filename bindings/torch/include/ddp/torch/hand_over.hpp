// Where the ends of operations run code of the program: callbacks of futures, destructors of its tensors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddp::torch {

using HandOver = void (*)(std::function<void()> task);

/// Gets what threads of libddp have to do at the end of an operation, from any thread; null: they do it themselves.
/// Python programs, whose tensors and callbacks must not be touched once the interpreter has gone, set it before any
/// operation.
inline std::atomic<HandOver> hand_over_to{nullptr};

inline void hand_over(std::function<void()> task) {
  if (const HandOver other = hand_over_to.load(std::memory_order_acquire)) return other(std::move(task));
  task();
}

/// Keeps tensors; the last owner's thread hands them over.
inline std::shared_ptr<const void> owner_of(std::vector<at::Tensor> tensors) {
  return {new std::vector<at::Tensor>(std::move(tensors)),
          [](const std::vector<at::Tensor>* kept) { hand_over([kept] { delete kept; }); }};
}

}  // namespace ddp::torch
