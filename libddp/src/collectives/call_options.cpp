#include "collectives/call_options.hpp"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

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
