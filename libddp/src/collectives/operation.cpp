#include "collectives/operation.hpp"

#include <bit>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>
#include <ddp/operation.hpp>

namespace ddp {

std::string_view to_string(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::reduce: return "reduce";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::all_gather_v: return "all_gather_v";
    case OperationKind::gather: return "gather";
    case OperationKind::scatter: return "scatter";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send";
    case OperationKind::recv: return "recv";
  }
  return "unknown";
}

namespace {

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

bool rooted(OperationKind kind) {
  return kind == OperationKind::broadcast || kind == OperationKind::reduce || kind == OperationKind::gather ||
         kind == OperationKind::scatter;
}

/// A step of a hash. Small collectives wait for it, so it takes a word at a time; and it can be undone, so that
/// operations that differ in one word always differ in the end.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, odd
  return hash ^ hash >> 32U;
}

}  // namespace

std::uint64_t Operation::fingerprint() const noexcept {
  // Both ends of a transfer must agree, so neither its kind nor the peer counts.
  const auto kinds = is_transfer() ? std::uint64_t{0xff} : static_cast<std::uint64_t>(kind);
  std::uint64_t word = kinds | static_cast<std::uint64_t>(dtype) << 8U;
  if (reduces(kind)) word |= static_cast<std::uint64_t>(reduce_op) << 16U;
  if (rooted(kind)) word |= std::uint64_t{static_cast<std::uint32_t>(root)} << 32U;
  std::uint64_t hash = mixed(mixed(0, word), is_transfer() ? tag : sequence);
  if (is_transfer() && sequence != 0) hash = mixed(hash, sequence);  // a part of a collective
  hash = mixed(hash, count);
  if (prescale != 1) hash = mixed(hash, std::bit_cast<std::uint64_t>(prescale));
  for (const std::size_t part : counts) hash = mixed(hash, part);
  return hash;
}

std::string Operation::description() const {
  std::string text(to_string(kind));
  if (part_of != nullptr) text = fmt::format("{}: {}", part_of, text);
  if (sequence != 0) text += fmt::format(" #{}", sequence);
  if (kind == OperationKind::barrier) return text;
  text += counts.empty() ? fmt::format(" of {} x {}", to_string(dtype), count)
                         : fmt::format(" of {} x [{}]", to_string(dtype), fmt::join(counts, ", "));
  if (reduces(kind)) text += fmt::format(", {}", to_string(reduce_op));
  if (prescale != 1) text += fmt::format(" times {}", prescale);
  if (rooted(kind)) text += fmt::format(", root {}", root);
  if (!is_transfer()) return text;
  text += fmt::format(" {} {}", kind == OperationKind::send ? "to" : "from", root);
  if (part_of == nullptr) text += fmt::format(", tag {}", tag);
  return text;
}

}  // namespace ddp

namespace ddp::collectives {
namespace {

/// The device that the tensors are on says which is its default stream.
void set_stream(std::span<Operation> operations, const CallOptions& options) {
  const auto per_thread = reinterpret_cast<void*>(2);  // cudaStreamPerThread, CU_STREAM_PER_THREAD
  if (options.stream && options.stream->handle == per_thread) {
    reject(operations, "the per-thread default stream is another one on each thread; pass a stream that was created");
  }
  for (Operation& operation : operations) {
    const TensorView& tensor = operation.output.numel() > 0 ? operation.output : operation.input;
    operation.stream = options.stream.value_or(Stream{.device = tensor.device(), .handle = nullptr});
    operation.in_stream = options.in_stream;
  }
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::int8:
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::uint32:
    case DType::uint64:
    case DType::boolean: return true;
    default: return false;
  }
}

void set_prescale(std::span<Operation> operations, double prescale) {
  constexpr double kSmallest = 1e-30;  // whose reciprocal is a float32, too
  for (Operation& operation : operations) {
    const bool sum = operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce ||
                     operation.kind == OperationKind::reduce_scatter;
    if (!sum || operation.reduce_op != ReduceOp::sum || is_integer(operation.dtype)) {
      reject(operations, "prescale is for sums of floating-point numbers");
    }
    if (!(std::abs(prescale) >= kSmallest && std::abs(prescale) <= 1 / kSmallest)) {
      reject(operations, fmt::format("a prescale of {} is not between 1e-30 and 1e30", prescale));
    }
    operation.prescale = prescale;
  }
}

}  // namespace

void reject(std::span<const Operation> operations, std::string cause) {
  throw Error{
      {.code = ErrorCode::invalid_argument,
       .attempted = operations.size() == 1 ? operations.front().description() : "starting several operations as one",
       .cause = std::move(cause)}};
}

void apply(const CallOptions& options, const BackendTraits& traits, std::span<Operation> operations) {
  if (traits.stream_ordered) set_stream(operations, options);
  if (options.prescale != 1) set_prescale(operations, options.prescale);
}

}  // namespace ddp::collectives
