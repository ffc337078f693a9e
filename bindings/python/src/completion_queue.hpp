// Ends of operations for who cannot wait: an event loop watches a descriptor and then asks which operations have ended.
// Threads of libddp only post numbers, and never touch Python.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <Python.h>

#include <ddp/work.hpp>

namespace ddp::python {

class CompletionQueue {
 public:
  /// Throws Error(system).
  CompletionQueue();

  /// Readable while ended operations wait to be taken. Owned by this object.
  int fileno() const noexcept;

  /// Posts @p number when @p work ends, at once if it has.
  void watch(const Work& work, std::uint64_t number);

  /// The numbers of what has ended since the last call.
  std::vector<std::uint64_t> take();

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< operations look whether it is still there
};

// What threads without the GIL leave for one that has it. Without locks, since a fork(2) may happen at any time, and
// the child must be able to look into it.

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

// Python objects that operations keep alive. Operations end on any thread, so what they held is put aside there,
// without Python, and released by the next call that holds the GIL.

/// What only PyTorch's C++ interface can do, by the adapter, once it is loaded: functions of its storage_size.hpp.
struct StorageFunctions {
  void* (*fix)(PyObject* tensor);
  void (*release)(void* fixed);
};
/// Null until then. With the GIL.
extern const StorageFunctions* storage_functions;

/// References that belong together: a buffer that was exported, or an object. A chain through next.
struct HeldObject {
  Py_buffer buffer{};          ///< released if buffer.obj is set
  PyObject* object = nullptr;  ///< a new reference, or null
  void* storage = nullptr;     ///< of StorageFunctions::fix, or null
  HeldObject* next = nullptr;
};

/// An owner for CallOptions::keep_alive. Its last copy may go on any thread, with or without the GIL.
std::shared_ptr<const void> hold(HeldObject* chain);

/// Releases what operations have put aside. With the GIL.
void release_dropped_objects() noexcept;

/// Releases at once, with the GIL: for what no operation has got yet.
void release(HeldObject* chain) noexcept;

}  // namespace ddp::python
