// Operations that start together are checked one by one, as they are added.
#include <ddp/batch.hpp>

#include "collectives/group_calls.hpp"

namespace ddp {

using collectives::GroupCalls;
using collectives::GroupEngine;

Batch& Batch::all_reduce(const TensorView& tensor, ReduceOp op) {
  return add(GroupCalls(GroupEngine::of(group_)).all_reduce(tensor, op));
}

Batch& Batch::broadcast(const TensorView& tensor, int root) {
  return add(GroupCalls(GroupEngine::of(group_)).broadcast(tensor, root));
}

Batch& Batch::reduce(const TensorView& tensor, int root, ReduceOp op) {
  return add(GroupCalls(GroupEngine::of(group_)).reduce(tensor, root, op));
}

Batch& Batch::all_gather(const TensorView& input, const TensorView& output) {
  return add(GroupCalls(GroupEngine::of(group_)).all_gather(input, output));
}

Batch& Batch::all_gather_v(const TensorView& input, const TensorView& output, std::span<const std::size_t> counts) {
  return add(GroupCalls(GroupEngine::of(group_)).all_gather_v(input, output, counts));
}

Batch& Batch::gather(const TensorView& input, const TensorView& output, int root) {
  return add(GroupCalls(GroupEngine::of(group_)).gather(input, output, root));
}

Batch& Batch::scatter(const TensorView& input, const TensorView& output, int root) {
  return add(GroupCalls(GroupEngine::of(group_)).scatter(input, output, root));
}

Batch& Batch::reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op) {
  return add(GroupCalls(GroupEngine::of(group_)).reduce_scatter(input, output, op));
}

Batch& Batch::all_to_all(const TensorView& input, const TensorView& output) {
  return add(GroupCalls(GroupEngine::of(group_)).all_to_all(input, output));
}

Batch& Batch::send(const TensorView& tensor, int peer, std::uint32_t tag) {
  return add(GroupCalls(GroupEngine::of(group_)).send(tensor, peer, tag));
}

Batch& Batch::recv(const TensorView& tensor, int peer, std::uint32_t tag) {
  return add(GroupCalls(GroupEngine::of(group_)).recv(tensor, peer, tag));
}

Batch& Batch::add(Operation operation) {
  operation.part_of = call_;
  operation.row = row_;
  operations_.push_back(std::move(operation));
  return *this;
}

Work Batch::start(CallOptions options) {
  return GroupEngine::of(group_).submit(std::exchange(operations_, {}), std::move(options));
}

}  // namespace ddp
