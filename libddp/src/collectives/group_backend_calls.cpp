// What a group's backend for CUDA tensors does beside operations: memory, moving tensors, groups of some ranks.
#include <fmt/format.h>

#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

Error not_free(std::string attempted) {
  return Error{{.code = ErrorCode::timeout,
                .attempted = std::move(attempted),
                .cause = "another call of the group's backend has not come back",
                .native = {},
                .ranks = {},
                .hint = "the log names the call"}};
}

}  // namespace

Backend& GroupDriver::device_backend(const std::string& attempted) {
  if (forked()) fork_guard_.check(attempted);
  if (const auto verdict = watch_.verdict()) throw *verdict;
  Lane* const lane = lane_of(DeviceType::cuda);
  if (lane == nullptr) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = attempted,
                 .cause = "no backend of the group serves CUDA tensors",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return *lane->carrier.backend;
}

std::shared_ptr<void> GroupDriver::allocate(std::size_t bytes, Deadline deadline) {
  const std::string attempted = fmt::format("allocating {} bytes for group '{}'", bytes, members_.name);
  Backend& backend = device_backend(attempted);
  if (bytes == 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = "that is no memory",
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  attempt();
  const Turn turn(*this, deadline.when());
  if (!turn.taken()) throw not_free(attempted);
  return backend.allocate(bytes, deadline);
}

std::shared_ptr<TensorExecutor> GroupDriver::make_executor(bool converts, Deadline deadline) {
  const std::string attempted = fmt::format("preparing to move gradients on a device for group '{}'", members_.name);
  Backend& backend = device_backend(attempted);
  attempt();
  const Turn turn(*this, deadline.when());
  if (!turn.taken()) throw not_free(attempted);
  return backend.make_executor(converts, deadline);
}

void GroupDriver::split(Backend* child, int rank, Deadline deadline) {
  Lane* const lane = lane_of(DeviceType::cuda);
  if (lane == nullptr || !lane->traits.splits) return;
  attempt();
  const Turn turn(*this, deadline.when());
  if (!turn.taken()) throw not_free(fmt::format("splitting a group off group '{}'", members_.name));
  lane->carrier.backend->split(child, rank, deadline);
}

}  // namespace ddp::collectives
