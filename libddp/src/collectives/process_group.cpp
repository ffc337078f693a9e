// The public operations of a group: each is checked, and handed to the group's engine.
#include <ddp/process_group.hpp>

#include "collectives/group_calls.hpp"
#include "collectives/group_rendezvous.hpp"

namespace ddp {

using collectives::GroupCalls;

std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "unknown";
}

int ProcessGroup::rank() const noexcept { return engine_->members().rank; }
int ProcessGroup::size() const noexcept { return engine_->members().size(); }
const std::vector<int>& ProcessGroup::global_ranks() const noexcept { return engine_->members().global_ranks; }
const std::string& ProcessGroup::name() const noexcept { return engine_->members().name; }
std::string ProcessGroup::backend() const { return engine_->backend_name(); }
std::chrono::milliseconds ProcessGroup::timeout() const noexcept { return engine_->timeout(); }

std::optional<Device> ProcessGroup::cuda_device() const noexcept {
  const collectives::Lane* lane = engine_->lane_of(DeviceType::cuda);
  if (lane == nullptr || lane->traits.device < 0) return std::nullopt;
  return Device{.type = DeviceType::cuda, .index = lane->traits.device};
}

Work ProcessGroup::all_reduce(TensorView tensor, ReduceOp op, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).all_reduce(tensor, op), std::move(options));
}

Work ProcessGroup::broadcast(TensorView tensor, int root, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).broadcast(tensor, root), std::move(options));
}

Work ProcessGroup::reduce(TensorView tensor, int root, ReduceOp op, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).reduce(tensor, root, op), std::move(options));
}

Work ProcessGroup::all_gather(TensorView input, TensorView output, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).all_gather(input, output), std::move(options));
}

Work ProcessGroup::all_gather_v(TensorView input, TensorView output, std::span<const std::size_t> counts,
                                CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).all_gather_v(input, output, counts), std::move(options));
}

Work ProcessGroup::gather(TensorView input, TensorView output, int root, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).gather(input, output, root), std::move(options));
}

Work ProcessGroup::scatter(TensorView input, TensorView output, int root, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).scatter(input, output, root), std::move(options));
}

Work ProcessGroup::reduce_scatter(TensorView input, TensorView output, ReduceOp op, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).reduce_scatter(input, output, op), std::move(options));
}

Work ProcessGroup::all_to_all(TensorView input, TensorView output, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).all_to_all(input, output), std::move(options));
}

Work ProcessGroup::barrier(CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).barrier(), std::move(options));
}

Work ProcessGroup::send(TensorView tensor, int peer, std::uint32_t tag, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).send(tensor, peer, tag), std::move(options));
}

Work ProcessGroup::recv(TensorView tensor, int peer, std::uint32_t tag, CallOptions options) {
  return engine_->submit(GroupCalls(*engine_).recv(tensor, peer, tag), std::move(options));
}

std::shared_ptr<void> ProcessGroup::allocate(std::size_t bytes, std::optional<Deadline> deadline) {
  return engine_->allocate(bytes, deadline.value_or(Deadline::after(engine_->timeout())));
}

void ProcessGroup::abort(std::string_view reason) noexcept { engine_->abort(reason); }

std::optional<ProcessGroup> ProcessGroup::new_group(std::span<const int> members) {
  auto engine = collectives::make_subgroup(*this, members);
  if (!engine) return std::nullopt;
  return ProcessGroup{std::move(engine)};
}

}  // namespace ddp
