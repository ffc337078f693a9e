// What a thread looks for while it waits: a program whose signals are handled on that thread, as Python's, must not be
// deaf to them until an operation ends.
#pragma once

namespace ddp {

/// While it lives, Work::wait_watched on the thread that made it calls @p look each 50 ms. What that throws ends the
/// wait, and the operation continues. So a Reducer and a Join wait for what keeps its memory: buckets, unless a hook
/// exchanges them, reports, announcements, buffers; the step, or the Join, has failed then as by any error. The
/// WaitWatch that was made last counts. Made and destroyed on one thread, the last one first.
class [[nodiscard]] WaitWatch {
 public:
  using Look = void (*)();  ///< looks; throws to end the wait
  /// @param look null: what was looked for before.
  explicit WaitWatch(Look look) noexcept : before_(current()) {
    if (look != nullptr) current() = look;
  }
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;
  ~WaitWatch() { current() = before_; }

  /// The calling thread's; null: none.
  static Look& current() noexcept;

 private:
  const Look before_;
};

}  // namespace ddp
