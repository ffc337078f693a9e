#include "dropped_objects.hpp"

#include "gil.hpp"
#include "mailbox.hpp"

namespace ddp::python {
namespace {

/// Never destroyed: threads of libddp may still end operations while the process exits.
Mailbox<HeldObject>& dropped() {
  static auto* const box = new Mailbox<HeldObject>;
  return *box;
}

}  // namespace

std::shared_ptr<const void> hold(HeldObject* chain) {
  return {chain, [](HeldObject* all) { dropped().post(all); }};
}

void release(HeldObject* chain) noexcept {
  while (chain != nullptr) {
    const std::unique_ptr<HeldObject> held(chain);
    chain = held->next;
    or_stop([&] {  // finalizers are Python code
      if (held->buffer.obj != nullptr) PyBuffer_Release(&held->buffer);
      Py_XDECREF(held->capsule);
    });
  }
}

void release_dropped_objects() noexcept { release(dropped().take()); }

}  // namespace ddp::python
