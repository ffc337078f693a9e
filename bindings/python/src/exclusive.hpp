// What one call at a time may use, although calls may go on when Ctrl-C has ended them for Python.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ddp/error.hpp>

namespace ddp::python {

/// A shared handle to a T. Copies are the same T.
template <class T>
class Exclusive {
 public:
  template <class... Arguments>
  explicit Exclusive(std::in_place_t, Arguments&&... arguments)
      : state_(std::make_shared<State>(std::forward<Arguments>(arguments)...)) {}

  /// Calls @p function with it. Throws Error(unavailable) while another call has it: never waits, so that the GIL may
  /// be held.
  template <class Function>
  auto use(const char* attempted, Function function) const {
    const std::unique_lock lock(state_->calls, std::try_to_lock);
    if (lock) return function(state_->value);
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = attempted,
                 .cause = "another call to the same object is still under way",
                 .hint = "use it from one thread, and not after Ctrl-C has ended a call"}};
  }
  /// For what is safe at any time.
  T& shared() const noexcept { return state_->value; }

 private:
  struct State {
    template <class... Arguments>
    explicit State(Arguments&&... arguments) : value(std::forward<Arguments>(arguments)...) {}
    std::mutex calls;
    T value;
  };
  std::shared_ptr<State> state_;
};

}  // namespace ddp::python
