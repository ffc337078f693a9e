// Python objects that operations keep alive. Operations end on any thread, so what they held is put aside there,
// without Python, and released by the next call that holds the GIL.
#pragma once

#include <Python.h>

#include <memory>

namespace ddp::python {

/// References that belong together: a buffer that was exported, or a capsule. A chain through next.
struct HeldObject {
  Py_buffer buffer{};           ///< released if buffer.obj is set
  PyObject* capsule = nullptr;  ///< a new reference, or null
  HeldObject* next = nullptr;
};

/// An owner for CallOptions::keep_alive. Its last copy may go on any thread, with or without the GIL.
std::shared_ptr<const void> hold(HeldObject* chain);

/// Releases what operations have put aside. With the GIL.
void release_dropped_objects() noexcept;

/// Releases at once, with the GIL: for what no operation has got yet.
void release(HeldObject* chain) noexcept;

}  // namespace ddp::python
