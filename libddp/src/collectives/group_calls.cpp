#include "collectives/group_calls.hpp"

#include <numeric>

#include <fmt/format.h>

#include <ddp/batch.hpp>

#include "base/log.hpp"
#include "collectives/group_engine.hpp"
#include "collectives/group_rendezvous.hpp"

namespace ddp::collectives {
namespace {

/// Builds one operation; each check throws Error(invalid_argument).
class Call {
 public:
  Call(GroupEngine& engine, OperationKind kind) : engine_(engine) { operation_.kind = kind; }
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

  GroupEngine& engine_;
  Operation operation_;
};

/// The operations of a group; each throws Error(invalid_argument).
class GroupCalls {
 public:
  explicit GroupCalls(GroupEngine& group) : group_(group) {}

  Operation all_reduce(const TensorView& tensor, ReduceOp op) const {
    return Call(group_, OperationKind::all_reduce).in_place(tensor).of(tensor).op(op).take();
  }
  Operation broadcast(const TensorView& tensor, int root) const {
    return Call(group_, OperationKind::broadcast).in_place(tensor).of(tensor).root(root).take();
  }
  Operation reduce(const TensorView& tensor, int root, ReduceOp op) const {
    return Call(group_, OperationKind::reduce).in_place(tensor).of(tensor).op(op).root(root).take();
  }
  Operation all_gather(const TensorView& input, const TensorView& output) const {
    Call call(group_, OperationKind::all_gather);
    return call.input(input).output(output).of(input).holds("output", output, call.parts()).take();
  }
  Operation all_gather_v(const TensorView& input, const TensorView& output, std::span<const std::size_t> counts) const {
    Call call(group_, OperationKind::all_gather_v);
    call.input(input).output(output).of(output).counts(counts);
    call.holds_elements("input", input, input.numel());
    call.holds_elements("output", output, std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
    return call.take();
  }
  Operation gather(const TensorView& input, const TensorView& output, int root) const {
    Call call(group_, OperationKind::gather);
    call.input(input).of(input).root(root);
    if (call.is_root()) call.output(output).holds("output", output, call.parts());
    return call.take();
  }
  Operation scatter(const TensorView& input, const TensorView& output, int root) const {
    Call call(group_, OperationKind::scatter);
    call.output(output).of(output).root(root);
    if (call.is_root()) call.input(input).holds("input", input, call.parts());
    return call.take();
  }
  Operation reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op) const {
    Call call(group_, OperationKind::reduce_scatter);
    return call.input(input).output(output).of(output).op(op).holds("input", input, call.parts()).take();
  }
  Operation all_to_all(const TensorView& input, const TensorView& output) const {
    Call call(group_, OperationKind::all_to_all);
    return call.input(input).output(output).of(input).holds("output", output, 1).in_equal_parts(input).take();
  }
  Operation barrier() const { return Call(group_, OperationKind::barrier).take(); }
  Operation send(const TensorView& tensor, int peer, std::uint32_t tag) const {
    return Call(group_, OperationKind::send).input(tensor).of(tensor).peer(peer, tag).take();
  }
  Operation recv(const TensorView& tensor, int peer, std::uint32_t tag) const {
    return Call(group_, OperationKind::recv).output(tensor).of(tensor).peer(peer, tag).take();
  }

 private:
  GroupEngine& group_;
};

}  // namespace

}  // namespace ddp::collectives

namespace ddp {

// The public operations of a group: each is checked and handed to the group's engine.

using collectives::GroupCalls;

namespace {

GroupCalls calls(ProcessGroup& group) { return GroupCalls(collectives::GroupEngine::of(group)); }

}  // namespace

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

void ProcessGroup::abort(const Error& error) noexcept { engine_->abort(error); }

void ProcessGroup::abort(std::string_view reason) noexcept {
  const int own = engine_->members().global(rank());
  try {
    abort(Error{{.code = ErrorCode::aborted,
                 .attempted = fmt::format("using group '{}'", name()),
                 .cause = fmt::format("rank {} aborted it{}{}", own, reason.empty() ? "" : ": ", reason),
                 .ranks = {own},
                 .hint = "look at that rank; then make a new group"}});
  } catch (const std::exception& error) {  // out of memory: the group's end does as well
    base::log(base::LogLevel::error, "aborting group '{}': {}", name(), error.what());
  }
}

std::optional<ProcessGroup> ProcessGroup::new_group(std::span<const int> members) {
  auto engine = collectives::make_subgroup(*this, members);
  if (!engine) return std::nullopt;
  return ProcessGroup{std::move(engine)};
}

// Operations that start together are checked one by one, as they are added.

Batch& Batch::all_reduce(const TensorView& tensor, ReduceOp op) { return add(calls(group_).all_reduce(tensor, op)); }
Batch& Batch::broadcast(const TensorView& tensor, int root) { return add(calls(group_).broadcast(tensor, root)); }
Batch& Batch::reduce(const TensorView& tensor, int root, ReduceOp op) {
  return add(calls(group_).reduce(tensor, root, op));
}
Batch& Batch::all_gather(const TensorView& input, const TensorView& output) {
  return add(calls(group_).all_gather(input, output));
}
Batch& Batch::all_gather_v(const TensorView& input, const TensorView& output, std::span<const std::size_t> counts) {
  return add(calls(group_).all_gather_v(input, output, counts));
}
Batch& Batch::gather(const TensorView& input, const TensorView& output, int root) {
  return add(calls(group_).gather(input, output, root));
}
Batch& Batch::scatter(const TensorView& input, const TensorView& output, int root) {
  return add(calls(group_).scatter(input, output, root));
}
Batch& Batch::reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op) {
  return add(calls(group_).reduce_scatter(input, output, op));
}
Batch& Batch::all_to_all(const TensorView& input, const TensorView& output) {
  return add(calls(group_).all_to_all(input, output));
}
Batch& Batch::send(const TensorView& tensor, int peer, std::uint32_t tag) {
  return add(calls(group_).send(tensor, peer, tag));
}
Batch& Batch::recv(const TensorView& tensor, int peer, std::uint32_t tag) {
  return add(calls(group_).recv(tensor, peer, tag));
}

Batch& Batch::add(Operation operation) {
  operation.part_of = call_;
  operation.row = row_;
  operations_.push_back(std::move(operation));
  return *this;
}

Work Batch::start(CallOptions options) {
  return collectives::GroupEngine::of(group_).submit(std::exchange(operations_, {}), std::move(options));
}

}  // namespace ddp

namespace ddp::collectives {

std::vector<Bytes> all_gather_bytes(ProcessGroup& group, std::span<const std::byte> own,
                                    std::optional<Deadline> deadline) {
  const auto view = [](std::span<const std::byte> bytes) {
    return std::span{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
  };
  std::vector<std::int64_t> own_size{static_cast<std::int64_t>(own.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  group.all_gather(own_size, sizes, deadline).wait();
  const std::vector<std::size_t> counts(sizes.begin(), sizes.end());
  Bytes received(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  group.all_gather_v(view(own), view(received), counts, deadline).wait();
  std::vector<Bytes> all;
  auto next = received.begin();
  for (const std::size_t count : counts) {
    const auto end = next + static_cast<std::ptrdiff_t>(count);
    all.emplace_back(next, end);
    next = end;
  }
  return all;
}

}  // namespace ddp::collectives
