// Calls that may wait long, from Python's main thread: Ctrl-C must end them, but libddp's waits know no signals.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace ddp::python {

/// Runs @p task without the GIL: on this thread, or where signals are handled on this one (Python's main thread) on
/// another, while this one looks for signals. What it throws is thrown here. After a signal whose handler throws
/// (KeyboardInterrupt), the exception leaves at once and the task ends on its own, so it must own all that it uses, and
/// no Python object.
void run_interruptibly(std::function<void()> task);

/// The same for what has a result.
template <class Function>
auto interruptible(Function function) {
  using Result = std::invoke_result_t<Function>;
  auto result = std::make_shared<std::optional<Result>>();
  run_interruptibly([result, function = std::move(function)]() mutable { result->emplace(function()); });
  return std::move(**result);
}

}  // namespace ddp::python
