// What a thread checks while it waits: a program whose signals are handled on that thread, such as Python, must not
// ignore them until an operation ends.
#pragma once

namespace ddp {

/// While it lives, Work::wait_watched on the thread that made it calls @p look every 50 ms. An exception from it ends
/// the wait, and the operation continues. A Reducer and a Join wait this way for operations that own their memory:
/// buckets, unless a hook exchanges them, reports, announcements, buffers; the step, or the Join, has then failed as
/// after any error. The WaitWatch made last counts. Made and destroyed on one thread, the last one first.
class [[nodiscard]] WaitWatch {
 public:
  using Look = void (*)();  ///< checks; throws to end the wait
  /// @param look null: keeps what was checked before.
  explicit WaitWatch(Look look) noexcept : before_(current()) {
    if (look != nullptr) current() = look;
  }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch() { current() = before_; }

  /// The calling thread's check; null: none.
  static Look& current() noexcept;

 private:
  const Look before_;
};

}  // namespace ddp
