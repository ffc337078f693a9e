// The handle of an operation that runs in the background.
#pragma once

#include <memory>
#include <optional>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

namespace ddp {

namespace collectives {
class WorkState;
}

/// One operation of a process group, running or finished. Copyable handle; copies refer to the same operation.
/// Dropping it does not cancel the operation. Thread-safe.
class [[nodiscard]] Work {
 public:
  explicit Work(std::shared_ptr<collectives::WorkState> state) : state_(std::move(state)) {}

  /// Blocks until the operation is finished; throws its Error if it failed. It finishes within its own deadline. A
  /// backend that hangs past that costs up to 30 s more: then wait() throws, and the operation may still use its
  /// tensors.
  void wait() const;

  /// The same, but gives up at @p deadline with Error(timeout), while the operation continues.
  void wait(Deadline deadline) const;

  /// Whether it is finished, successfully or not. Never blocks.
  bool done() const;

  /// The error of a finished operation; nothing while it runs or if it succeeded. Never blocks.
  std::optional<Error> error() const;

  /// When it finished, for measuring; nothing while it runs. Never blocks.
  std::optional<Deadline::Clock::time_point> finished_at() const;

 private:
  std::shared_ptr<collectives::WorkState> state_;
};

}  // namespace ddp
