// Calls of other libraries that have no deadline and may hang: a resolver, a PMIx server, a GPU driver.
#pragma once

#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <ddp/deadline.hpp>

#include "base/library_thread.hpp"

namespace ddp::base {

/// Calls @p function on a thread of its own. Returns what it returns or throws what it throws; nothing at the deadline:
/// then the thread is abandoned, so that @p function must own all that it touches. Throws Error(system) when there can
/// be no more threads.
template <class Function>
std::optional<std::invoke_result_t<Function>> abandonable_call(Function function, Deadline deadline) {
  using Result = std::invoke_result_t<Function>;
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> result = promise->get_future();
  start_thread([promise, call = std::move(function)]() mutable {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_until(deadline.when()) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace ddp::base
