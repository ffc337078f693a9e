// Makes an Operation of a call's arguments, after checking all that can be checked without the other ranks.
#pragma once

#include <span>

#include <ddp/operation.hpp>

#include "collectives/group_engine.hpp"

namespace ddp::collectives {

/// The operation of @p group; each throws Error(invalid_argument).
class GroupCalls {
 public:
  explicit GroupCalls(const GroupEngine& group) : group_(group) {}

  Operation all_reduce(const TensorView& tensor, ReduceOp op) const;
  Operation broadcast(const TensorView& tensor, int root) const;
  Operation reduce(const TensorView& tensor, int root, ReduceOp op) const;
  Operation all_gather(const TensorView& input, const TensorView& output) const;
  Operation all_gather_v(const TensorView& input, const TensorView& output, std::span<const std::size_t> counts) const;
  Operation gather(const TensorView& input, const TensorView& output, int root) const;
  Operation scatter(const TensorView& input, const TensorView& output, int root) const;
  Operation reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op) const;
  Operation all_to_all(const TensorView& input, const TensorView& output) const;
  Operation barrier() const;
  Operation send(const TensorView& tensor, int peer, std::uint32_t tag) const;
  Operation recv(const TensorView& tensor, int peer, std::uint32_t tag) const;

 private:
  const GroupEngine& group_;
};

}  // namespace ddp::collectives
