// Checks the arguments of every operation before anything is sent, and hands it to the group's engine.
#include <ddp/process_group.hpp>

#include <numeric>

#include <fmt/format.h>

#include "collectives/group_rendezvous.hpp"
#include "collectives/shared_all_reduce.hpp"

namespace ddp {
namespace collectives {
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
    if (op == ReduceOp::avg && operation_.dtype == DType::boolean) fail("booleans have no average");
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
    if (engine_.serves(tensor.device().type)) return;
    fail(fmt::format("the backend {} does not serve the tensor's device", engine_.backend_name()));
  }
  [[noreturn]] void fail(std::string cause) const {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = std::string(to_string(operation_.kind)),
                 .cause = std::move(cause),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }

  const GroupEngine& engine_;
  Operation operation_;
};

}  // namespace

Work shared_all_reduce(ProcessGroup& group, const TensorView& tensor, ReduceOp op, std::optional<Deadline> deadline,
                       std::shared_ptr<const void> owner) {
  GroupEngine& engine = GroupEngine::of(group);
  Operation operation = Call(engine, OperationKind::all_reduce).in_place(tensor).of(tensor).op(op).take();
  operation.keep_alive = std::move(owner);
  return engine.submit(std::move(operation), deadline);
}

}  // namespace collectives

using collectives::Call;

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

Work ProcessGroup::all_reduce(TensorView tensor, ReduceOp op, OptionalDeadline deadline) {
  return collectives::shared_all_reduce(*this, tensor, op, deadline, nullptr);
}

Work ProcessGroup::broadcast(TensorView tensor, int root, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::broadcast);
  return engine_->submit(call.in_place(tensor).of(tensor).root(root).take(), deadline);
}

Work ProcessGroup::reduce(TensorView tensor, int root, ReduceOp op, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::reduce);
  return engine_->submit(call.in_place(tensor).of(tensor).op(op).root(root).take(), deadline);
}

Work ProcessGroup::all_gather(TensorView input, TensorView output, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::all_gather);
  call.input(input).output(output).of(input).holds("output", output, call.parts());
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::all_gather_v(TensorView input, TensorView output, std::span<const std::size_t> counts,
                                OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::all_gather_v);
  call.input(input).output(output).of(output).counts(counts);
  call.holds_elements("input", input, input.numel());
  call.holds_elements("output", output, std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::gather(TensorView input, TensorView output, int root, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::gather);
  call.input(input).of(input).root(root);
  if (call.is_root()) call.output(output).holds("output", output, call.parts());
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::scatter(TensorView input, TensorView output, int root, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::scatter);
  call.output(output).of(output).root(root);
  if (call.is_root()) call.input(input).holds("input", input, call.parts());
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::reduce_scatter(TensorView input, TensorView output, ReduceOp op, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::reduce_scatter);
  call.input(input).output(output).of(output).op(op).holds("input", input, call.parts());
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::all_to_all(TensorView input, TensorView output, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::all_to_all);
  call.input(input).output(output).of(input).holds("output", output, 1);
  if (input.numel() % call.parts() != 0) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "all_to_all",
                 .cause = fmt::format("{} cannot be cut into {} equal parts", input.description(), call.parts()),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  return engine_->submit(call.take(), deadline);
}

Work ProcessGroup::barrier(OptionalDeadline deadline) {
  return engine_->submit(Call(*engine_, OperationKind::barrier).take(), deadline);
}

Work ProcessGroup::send(TensorView tensor, int peer, std::uint32_t tag, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::send);
  return engine_->submit(call.input(tensor).of(tensor).peer(peer, tag).take(), deadline);
}

Work ProcessGroup::recv(TensorView tensor, int peer, std::uint32_t tag, OptionalDeadline deadline) {
  Call call(*engine_, OperationKind::recv);
  return engine_->submit(call.output(tensor).of(tensor).peer(peer, tag).take(), deadline);
}

std::optional<ProcessGroup> ProcessGroup::new_group(std::span<const int> members) {
  auto engine = collectives::make_subgroup(*this, members);
  if (!engine) return std::nullopt;
  return ProcessGroup{std::move(engine)};
}

}  // namespace ddp
