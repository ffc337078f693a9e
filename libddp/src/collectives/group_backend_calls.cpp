// What a group's backend for CUDA tensors does beside operations: memory, moving tensors, groups of some ranks. Such a
// call waits for all ranks, of which some may first have to get further with the group's other operations: so it has
// the right to drive only while it looks.
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

Error not_free(std::string attempted) {
  return Error{{.code = ErrorCode::timeout,
                .attempted = std::move(attempted),
                .cause = "another call of the group's backend has not come back",
                .hint = "the log names the call"}};
}

}  // namespace

template <class Call>
auto GroupDriver::call_with_pauses(const std::string& attempted, Deadline deadline, Call&& call) {
  std::optional<Turn> turn;
  const auto take_turn = [&] {
    attempt();
    turn.emplace(*this, deadline.when());
    if (!turn->taken()) throw not_free(attempted);
    if (!gone_) return;
    throw Error{
        {.code = ErrorCode::aborted, .attempted = attempted, .cause = "the process group was closed meanwhile"}};
  };
  WaitLadder ladder(false);
  take_turn();
  try {
    return call([&] {
      turn.reset();
      if (const auto rest_for = ladder.pause(); rest_for != std::chrono::microseconds::zero()) {
        std::this_thread::sleep_for(rest_for);
        ladder.rested();
      }
      take_turn();
    });
  } catch (const Error&) {
    if (const auto verdict = watch_.verdict()) throw *verdict;  // of which it is a consequence
    throw;
  }
}

Backend& GroupDriver::device_backend(const std::string& attempted) {
  if (forked()) fork_guard_.check(attempted);
  if (const auto verdict = watch_.verdict()) throw *verdict;
  Lane* const lane = lane_of(DeviceType::cuda);
  if (lane == nullptr) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = attempted,
                 .cause = "no backend of the group serves CUDA tensors"}};
  }
  return *lane->carrier.backend;
}

std::shared_ptr<void> GroupDriver::allocate(std::size_t bytes, Deadline deadline) {
  const std::string attempted = fmt::format("allocating {} bytes for group '{}'", bytes, members_.name);
  Backend& backend = device_backend(attempted);
  if (bytes == 0) {
    throw Error{{.code = ErrorCode::invalid_argument, .attempted = attempted, .cause = "that is no memory"}};
  }
  return call_with_pauses(attempted, deadline,
                          [&](const Backend::Pause& pause) { return backend.allocate(bytes, deadline, pause); });
}

std::shared_ptr<TensorExecutor> GroupDriver::make_executor(bool converts, Deadline deadline) {
  const std::string attempted = fmt::format("preparing to move gradients on a device for group '{}'", members_.name);
  Backend& backend = device_backend(attempted);
  return call_with_pauses(attempted, deadline, [&](const Backend::Pause& pause) {
    return backend.make_executor(converts, deadline, pause);
  });
}

void GroupDriver::split(Backend* child, int rank, Deadline deadline) {
  Lane* const lane = lane_of(DeviceType::cuda);
  if (lane == nullptr || !lane->traits.splits) return;
  const std::string attempted = fmt::format("splitting a group off group '{}'", members_.name);
  call_with_pauses(attempted, deadline,
                   [&](const Backend::Pause& pause) { lane->carrier.backend->split(child, rank, deadline, pause); });
}

}  // namespace ddp::collectives
