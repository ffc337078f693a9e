#include "collectives/group_calls.hpp"

#include <numeric>

#include <fmt/format.h>

namespace ddp::collectives {
namespace {

/// Builds one operation; each check throws Error(invalid_argument).
class Call {
 public:
  Call(const GroupEngine& engine, OperationKind kind) : engine_(engine) { operation_.kind = kind; }

  Call& in_place(const TensorView& tensor) { return input(tensor).output(tensor); }
  Call& input(const TensorView& tensor) {
    check_device(tensor);
    operation_.input = tensor;
    return *this;
  }
  Call& output(const TensorView& tensor) {
    check_device(tensor);
    operation_.output = tensor;
    return *this;
  }
  Call& of(const TensorView& part) {
    operation_.dtype = part.dtype();
    operation_.count = part.numel();
    return *this;
  }
  Call& op(ReduceOp op) {
    const DType dtype = operation_.dtype;
    if (op == ReduceOp::avg && dtype == DType::boolean) fail("booleans have no average");
    if (component_of(dtype) != dtype && op != ReduceOp::sum && op != ReduceOp::avg) {
      fail(fmt::format("{} numbers have no {} here: they are added and averaged", to_string(dtype), to_string(op)));
    }
    if (dtype == DType::float8_e4m3fn || dtype == DType::float8_e5m2) {
      const Lane* lane = engine_.lane_of(operation_.input.device().type);
      if (lane->traits.no_float8_arithmetic != nullptr) fail(lane->traits.no_float8_arithmetic);
    }
    operation_.reduce_op = op;
    return *this;
  }
  Call& root(int root) { return rank("root", root); }
  Call& peer(int peer, std::uint32_t tag) {
    if (peer == engine_.members().rank) fail("a rank cannot exchange messages with itself");
    operation_.tag = tag;
    return rank("peer", peer);
  }
  Call& counts(std::span<const std::size_t> counts) {
    const auto size = engine_.members().global_ranks.size();
    if (counts.size() != size) fail(fmt::format("{} counts for {} ranks", counts.size(), size));
    operation_.counts.assign(counts.begin(), counts.end());
    const auto own = counts[static_cast<std::size_t>(engine_.members().rank)];
    if (own != operation_.input.numel()) {
      fail(fmt::format("this rank's count is {}, but its input is {}", own, operation_.input.description()));
    }
    return *this;
  }
  /// @param whole must hold @p parts times operation_.count elements of the same type.
  Call& holds(std::string_view what, const TensorView& whole, std::size_t parts) {
    return holds_elements(what, whole, operation_.count * parts);
  }
  Call& holds_elements(std::string_view what, const TensorView& whole, std::size_t elements) {
    if (whole.dtype() != operation_.dtype || whole.numel() != elements) {
      fail(fmt::format("the {} is {}, but {} x {} are needed", what, whole.description(), to_string(operation_.dtype),
                       elements));
    }
    return *this;
  }
  Call& in_equal_parts(const TensorView& whole) {
    if (whole.numel() % parts() != 0) {
      fail(fmt::format("{} cannot be cut into {} equal parts", whole.description(), parts()));
    }
    return *this;
  }
  Operation take() { return std::move(operation_); }
  bool is_root() const { return operation_.root == engine_.members().rank; }
  std::size_t parts() const { return engine_.members().global_ranks.size(); }

 private:
  Call& rank(std::string_view what, int rank) {
    if (rank < 0 || rank >= static_cast<int>(parts())) {
      fail(fmt::format("{} {} is not a rank of this group of {}", what, rank, parts()));
    }
    operation_.root = rank;
    return *this;
  }
  void check_device(const TensorView& tensor) const {
    const Lane* lane = engine_.lane_of(tensor.device().type);
    if (lane == nullptr) {
      fail(fmt::format("the backend {} does not serve the tensor's device{}", engine_.backend_name(),
                       engine_.connect_options().why_no_cuda));
    }
    if (lane->traits.device >= 0 && lane->traits.device != tensor.device().index) {
      fail(fmt::format("the tensor is on CUDA device {}, but this rank's in the group is {}", tensor.device().index,
                       lane->traits.device));
    }
  }
  [[noreturn]] void fail(std::string cause) const {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = std::string(to_string(operation_.kind)),
                 .cause = std::move(cause)}};
  }

  const GroupEngine& engine_;
  Operation operation_;
};

}  // namespace

Operation GroupCalls::all_reduce(const TensorView& tensor, ReduceOp op) const {
  return Call(group_, OperationKind::all_reduce).in_place(tensor).of(tensor).op(op).take();
}

Operation GroupCalls::broadcast(const TensorView& tensor, int root) const {
  return Call(group_, OperationKind::broadcast).in_place(tensor).of(tensor).root(root).take();
}

Operation GroupCalls::reduce(const TensorView& tensor, int root, ReduceOp op) const {
  return Call(group_, OperationKind::reduce).in_place(tensor).of(tensor).op(op).root(root).take();
}

Operation GroupCalls::all_gather(const TensorView& input, const TensorView& output) const {
  Call call(group_, OperationKind::all_gather);
  return call.input(input).output(output).of(input).holds("output", output, call.parts()).take();
}

Operation GroupCalls::all_gather_v(const TensorView& input, const TensorView& output,
                                   std::span<const std::size_t> counts) const {
  Call call(group_, OperationKind::all_gather_v);
  call.input(input).output(output).of(output).counts(counts);
  call.holds_elements("input", input, input.numel());
  call.holds_elements("output", output, std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  return call.take();
}

Operation GroupCalls::gather(const TensorView& input, const TensorView& output, int root) const {
  Call call(group_, OperationKind::gather);
  call.input(input).of(input).root(root);
  if (call.is_root()) call.output(output).holds("output", output, call.parts());
  return call.take();
}

Operation GroupCalls::scatter(const TensorView& input, const TensorView& output, int root) const {
  Call call(group_, OperationKind::scatter);
  call.output(output).of(output).root(root);
  if (call.is_root()) call.input(input).holds("input", input, call.parts());
  return call.take();
}

Operation GroupCalls::reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op) const {
  Call call(group_, OperationKind::reduce_scatter);
  return call.input(input).output(output).of(output).op(op).holds("input", input, call.parts()).take();
}

Operation GroupCalls::all_to_all(const TensorView& input, const TensorView& output) const {
  Call call(group_, OperationKind::all_to_all);
  return call.input(input).output(output).of(input).holds("output", output, 1).in_equal_parts(input).take();
}

Operation GroupCalls::barrier() const { return Call(group_, OperationKind::barrier).take(); }

Operation GroupCalls::send(const TensorView& tensor, int peer, std::uint32_t tag) const {
  return Call(group_, OperationKind::send).input(tensor).of(tensor).peer(peer, tag).take();
}

Operation GroupCalls::recv(const TensorView& tensor, int peer, std::uint32_t tag) const {
  return Call(group_, OperationKind::recv).output(tensor).of(tensor).peer(peer, tag).take();
}

}  // namespace ddp::collectives
