// The Error that a test's action throws.
#pragma once

#include <ddp/error.hpp>

namespace ddp::test {

/// The Error that @p action throws; nothing if it throws none.
template <class Action>
std::optional<Error> error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// The same for an action that must throw one: if it does not, the test fails by another exception.
template <class Action>
Error thrown_by(Action&& action) {
  if (auto error = error_of(action)) return *error;
  throw std::logic_error("no Error was thrown");
}

}  // namespace ddp::test
