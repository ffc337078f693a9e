// The handle of an operation that runs in the background.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

namespace collectives {
struct WorkState;
}

/// One operation of a process group, or several that were started as one, running or finished. Copyable handle; copies
/// refer to the same operation. Dropping it does not cancel the operation. Thread-safe.
///
/// With backends that complete operations inline, the waiting thread does the work itself. An operation that no thread
/// waits for is advanced by a library thread, which may notice its end a millisecond late.
class [[nodiscard]] Work {
 public:
  /// Shares @p state.
  explicit Work(collectives::WorkState& state) noexcept;
  Work(const Work& other) noexcept;  ///< refers to the same operation
  /// @p other may then only be destroyed or assigned to.
  Work(Work&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  /// Refers to the operation of @p other.
  Work& operator=(Work other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Work();

  /// Blocks until the operation is finished; throws its Error if it failed. It finishes within its own deadline.
  /// If the backend hangs past that, wait() throws after up to 30 s more, and the operation may still use its
  /// tensors.
  void wait() const;

  /// The same, but gives up at @p deadline with Error(timeout), while the operation continues.
  void wait(Deadline deadline) const;

  /// Like wait(), but this thread's WaitWatch may end it earlier. The operation then continues, and must own its
  /// tensors (CallOptions::keep_alive).
  void wait_watched() const;

  /// Whether it is finished, successfully or not. Advances it if no other thread does. Never blocks.
  bool done() const;

  /// The error of a finished operation; nothing while it runs or if it succeeded. Never blocks.
  std::optional<Error> error() const;

  /// When it finished, for measuring; nothing while it runs. Never blocks.
  std::optional<Deadline::Clock::time_point> finished_at() const;

  /// Calls @p callback once when the operation is finished, successfully or not: from the thread that finishes it, or
  /// immediately. No library lock is held then. It must not block, since other operations wait meanwhile; it may start
  /// operations and mark gradients ready. Its exceptions are logged.
  void on_finish(std::function<void(const Work&)> callback) const;

  /// Makes work that is enqueued in @p stream from now on wait for the end of the operation; blocks this thread only
  /// until the operation has been started. A CPU stream is this thread: the same as wait(). Throws
  /// Error(invalid_argument) if the operation's backend does not run on streams, and the operation's Error if it has
  /// failed already. If it fails later, the stream continues: wait(), error() and the group's later calls report it.
  /// For a captured operation: valid only during that capture; @p stream joins it.
  void order(const Stream& stream) const;

 private:
  friend struct collectives::WorkState;
  collectives::WorkState* state_;  ///< null once moved from
};

}  // namespace ddp
