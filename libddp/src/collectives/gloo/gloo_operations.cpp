#include "collectives/gloo/gloo_operations.hpp"

#include <algorithm>
#include <cstring>

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives::gloo_backend {
namespace {

using MeshPtr = std::shared_ptr<GlooMesh>;

// The group's watchdog ends operations at their deadline, after finding the cause. Gloo's own timeout comes later,
// since it closes all connections without one.
constexpr std::chrono::milliseconds kSlack{5000};

// Gloo's slots use the low 48 bits (gloo/types.h). Bits 63 and 62 keep ours apart: transfers, and reduce_scatter's
// parts.
constexpr std::uint64_t kTransferSlot = 1ULL << 63U;
constexpr std::uint64_t kScatterSlot = 1ULL << 62U;

/// Messages of operations that differ in kind, size, type or root have different tags: ranks that call
/// different things wait instead of overwriting memory, and the failure detector compares the calls.
std::uint32_t tag_of(const Operation& operation) {
  const std::uint64_t fingerprint = operation.fingerprint();
  return static_cast<std::uint32_t>(fingerprint ^ (fingerprint >> 32U));
}

bool half_type(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

/// avg: half types are divided before the sum, so that it cannot overflow; the rest after it, which is more exact.
void divide_before(const Operation& operation, void* values, std::size_t count, int ranks) {
  if (operation.reduce_op == ReduceOp::avg && half_type(operation.dtype)) divide(values, operation.dtype, count, ranks);
}
void divide_after(const Operation& operation, void* values, std::size_t count, int ranks) {
  if (operation.reduce_op == ReduceOp::avg && !half_type(operation.dtype))
    divide(values, operation.dtype, count, ranks);
}

/// Options get tensors as bytes, except where Gloo must not cut an element in two: there the width picks the type.
template <class Function>
void with_element_type(DType dtype, Function&& function) {
  switch (size_of(dtype)) {
    case 8: return function(std::uint64_t{});
    case 4: return function(std::uint32_t{});
    case 2: return function(std::uint16_t{});
    default: return function(std::uint8_t{});
  }
}

template <class Options>
void set_limits(Options& options, const Operation& operation, Deadline deadline) {
  options.setTag(tag_of(operation));
  options.setTimeout(deadline.remaining() + kSlack);
}

void all_reduce(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  void* values = operation.output.data();
  divide_before(operation, values, operation.count, mesh->size);
  ::gloo::AllreduceOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setReduceFunction(reduce_kernel(operation.dtype, operation.reduce_op));
  with_element_type(operation.dtype,
                    [&](auto element) { options.setOutput(static_cast<decltype(element)*>(values), operation.count); });
  ::gloo::allreduce(options);
  divide_after(operation, values, operation.count, mesh->size);
}

void reduce(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  void* values = operation.output.data();
  divide_before(operation, values, operation.count, mesh->size);
  ::gloo::ReduceOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setRoot(operation.root);
  options.setReduceFunction(reduce_kernel(operation.dtype, operation.reduce_op));
  with_element_type(operation.dtype,
                    [&](auto element) { options.setOutput(static_cast<decltype(element)*>(values), operation.count); });
  ::gloo::reduce(options);
  if (operation.root == mesh->rank) divide_after(operation, values, operation.count, mesh->size);
}

void broadcast(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::BroadcastOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setRoot(operation.root);
  options.setOutput(static_cast<std::uint8_t*>(operation.output.data()), operation.output.size_bytes());
  ::gloo::broadcast(options);
}

void all_gather(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::AllgatherOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setInput(static_cast<std::uint8_t*>(operation.input.data()), operation.input.size_bytes());
  options.setOutput(static_cast<std::uint8_t*>(operation.output.data()), operation.output.size_bytes());
  ::gloo::allgather(options);
}

void all_gather_v(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::AllgathervOptions options(mesh);
  set_limits(options, operation, deadline);
  with_element_type(operation.dtype, [&](auto element) {
    options.setInput(static_cast<decltype(element)*>(operation.input.data()), operation.input.numel());
    options.setOutput(static_cast<decltype(element)*>(operation.output.data()), operation.counts);
  });
  ::gloo::allgatherv(options);
}

void gather(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::GatherOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setRoot(operation.root);
  options.setInput(static_cast<std::uint8_t*>(operation.input.data()), operation.input.size_bytes());
  if (operation.root == mesh->rank) {
    options.setOutput(static_cast<std::uint8_t*>(operation.output.data()), operation.output.size_bytes());
  }
  ::gloo::gather(options);
}

void scatter(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::ScatterOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setRoot(operation.root);
  const std::size_t part_bytes = operation.output.size_bytes();
  if (operation.root == mesh->rank) {
    std::vector<std::uint8_t*> parts;
    for (int peer = 0; peer < mesh->size; ++peer) {
      parts.push_back(static_cast<std::uint8_t*>(operation.input.data()) + static_cast<std::size_t>(peer) * part_bytes);
    }
    options.setInputs(parts, part_bytes);
  }
  options.setOutput(static_cast<std::uint8_t*>(operation.output.data()), part_bytes);
  ::gloo::scatter(options);
}

void all_to_all(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::AlltoallOptions options(mesh);
  set_limits(options, operation, deadline);
  options.setInput(static_cast<std::uint8_t*>(operation.input.data()), operation.input.size_bytes());
  options.setOutput(static_cast<std::uint8_t*>(operation.output.data()), operation.output.size_bytes());
  ::gloo::alltoall(options);
}

// Gloo has no reduce_scatter for unbound buffers. Every rank sends part i straight to rank i, which combines the parts
// in rank order: (W-1)/W of the input goes over the wire, as with a ring, in one step, and the result does not depend
// on timing. It costs W-1 parts of extra memory.
void reduce_scatter(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  const std::size_t part_bytes = operation.output.size_bytes();
  const auto ranks = static_cast<std::size_t>(mesh->size);
  const auto own = static_cast<std::size_t>(mesh->rank);
  const std::uint64_t slot = kScatterSlot | tag_of(operation);
  std::vector<std::byte> scaled;
  auto* input = static_cast<std::byte*>(operation.input.data());
  if (operation.reduce_op == ReduceOp::avg && half_type(operation.dtype)) {
    scaled.resize(operation.input.size_bytes());
    divide_into(scaled.data(), input, operation.dtype, operation.input.numel(), mesh->size);
    input = scaled.data();
  }
  std::vector<std::byte> received(part_bytes * ranks);
  const auto outgoing = mesh->createUnboundBuffer(input, part_bytes * ranks);
  const auto incoming = mesh->createUnboundBuffer(received.data(), received.size());
  for (std::size_t step = 1; step < ranks; ++step) {
    const std::size_t from = (own + ranks - step) % ranks;
    const std::size_t to = (own + step) % ranks;
    incoming->recv(static_cast<int>(from), slot, from * part_bytes, part_bytes);
    outgoing->send(static_cast<int>(to), slot, to * part_bytes, part_bytes);
  }
  std::memcpy(received.data() + own * part_bytes, input + own * part_bytes, part_bytes);
  for (std::size_t step = 1; step < ranks; ++step) incoming->waitRecv(deadline.remaining() + kSlack);
  std::memcpy(operation.output.data(), received.data(), part_bytes);
  const ReduceKernel combine = reduce_kernel(operation.dtype, operation.reduce_op);
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    combine(operation.output.data(), operation.output.data(), received.data() + rank * part_bytes, operation.count);
  }
  divide_after(operation, operation.output.data(), operation.count, mesh->size);
  for (std::size_t step = 1; step < ranks; ++step) outgoing->waitSend(deadline.remaining() + kSlack);
}

void barrier(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  ::gloo::BarrierOptions options(mesh);
  set_limits(options, operation, deadline);
  ::gloo::barrier(options);
}

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(const MeshPtr& mesh, const Operation& operation)
      : mesh_(mesh),
        sends_(operation.kind == OperationKind::send),
        buffer_(mesh->createUnboundBuffer((sends_ ? operation.input : operation.output).data(),
                                          operation.count * size_of(operation.dtype))) {
    const std::uint64_t slot = kTransferSlot | (operation.fingerprint() >> 2U);
    if (sends_) {
      buffer_->send(operation.root, slot);
    } else {
      buffer_->recv(operation.root, slot);
    }
  }
  void wait(Deadline deadline) override {
    const auto limit = deadline.remaining() + kSlack;
    const bool complete = sends_ ? buffer_->waitSend(limit) : buffer_->waitRecv(limit);
    if (!complete) throw ::gloo::IoException("the transfer was aborted");
  }

 private:
  MeshPtr mesh_;  // before the buffer, which belongs to it
  bool sends_;
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
};

}  // namespace

void run_collective(const MeshPtr& mesh, const Operation& operation, Deadline deadline) {
  const bool empty =
      operation.kind != OperationKind::barrier && operation.count == 0 && operation.kind != OperationKind::all_gather_v;
  // Gloo's algorithms expect at least one element. Without any, a barrier still detects a rank that called
  // something else.
  if (empty) return barrier(mesh, operation, deadline);
  switch (operation.kind) {
    case OperationKind::all_reduce: return all_reduce(mesh, operation, deadline);
    case OperationKind::broadcast: return broadcast(mesh, operation, deadline);
    case OperationKind::reduce: return reduce(mesh, operation, deadline);
    case OperationKind::all_gather: return all_gather(mesh, operation, deadline);
    case OperationKind::all_gather_v: return all_gather_v(mesh, operation, deadline);
    case OperationKind::gather: return gather(mesh, operation, deadline);
    case OperationKind::scatter: return scatter(mesh, operation, deadline);
    case OperationKind::reduce_scatter: return reduce_scatter(mesh, operation, deadline);
    case OperationKind::all_to_all: return all_to_all(mesh, operation, deadline);
    case OperationKind::barrier: return barrier(mesh, operation, deadline);
    case OperationKind::send:
    case OperationKind::recv: break;  // start_transfer's
  }
  throw ::gloo::InvalidOperationException("not a collective");
}

std::unique_ptr<Transfer> start_transfer(const MeshPtr& mesh, const Operation& operation) {
  return std::make_unique<GlooTransfer>(mesh, operation);
}

}  // namespace ddp::collectives::gloo_backend
