// Long waits within torch.distributed's calls: a binding of another language can look for signals meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

namespace ddp::torch {

using RunInterruptibly = void (*)(std::function<void()> wait);

/// Runs what may wait long, maybe on another thread, and throws its exception, or one of its own: then the wait goes
/// on, so that it must own all that it uses. Null: it is called as it is. Set once, before any operation.
inline std::atomic<RunInterruptibly> run_interruptibly{nullptr};

inline void interruptible(std::function<void()> wait) {
  if (const RunInterruptibly run = run_interruptibly.load(std::memory_order_acquire)) return run(std::move(wait));
  wait();
}

}  // namespace ddp::torch
