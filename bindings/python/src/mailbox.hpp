// What threads without the GIL leave for one that has it. Without locks, since a fork(2) may happen at any time, and
// the child must be able to look into it.
#pragma once

#include <atomic>

namespace ddp::python {

/// Nodes have a member `next`. Newest first.
template <class Node>
class Mailbox {
 public:
  /// Posts a chain of nodes. From any thread.
  void post(Node* first) noexcept {
    Node* last = first;
    while (last->next != nullptr) last = last->next;
    last->next = newest_.load(std::memory_order_relaxed);
    while (!newest_.compare_exchange_weak(last->next, first, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

  /// All that was posted, a chain or null; the caller owns it.
  Node* take() noexcept {
    if (newest_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    return newest_.exchange(nullptr, std::memory_order_acquire);
  }

 private:
  std::atomic<Node*> newest_{nullptr};
};

}  // namespace ddp::python
