// Several operations of a process group that start together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ddp/operation.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

/// Collects operations; start() hands them to the group together. A batch has either sends and receives, which all run
/// at the same time, or collectives, the same list on all ranks. All tensors are on devices of one type.
///
///     Work exchanged = Batch(group).send(mine, right).recv(theirs, left).start();
///
/// Arguments are those of ProcessGroup; invalid ones throw Error(invalid_argument) when they are added. Used by one
/// thread at a time.
class Batch {
 public:
  /// An empty batch for @p group.
  explicit Batch(ProcessGroup group) : group_(std::move(group)) {}
  /// For sends and receives that together implement another call, whose name messages then show. @param call static
  /// text such as "all_to_all". @param row elements of a row, if that call has rows; else 0.
  Batch(ProcessGroup group, const char* call, std::size_t row) : group_(std::move(group)), call_(call), row_(row) {}

  /// @{
  /// Adds an operation, with the arguments of ProcessGroup's function of that name. @return this batch.
  /// Throws Error(invalid_argument) like that function.
  Batch& all_reduce(const TensorView& tensor, ReduceOp op = ReduceOp::sum);
  Batch& broadcast(const TensorView& tensor, int root);
  Batch& reduce(const TensorView& tensor, int root, ReduceOp op = ReduceOp::sum);
  Batch& all_gather(const TensorView& input, const TensorView& output);
  Batch& all_gather_v(const TensorView& input, const TensorView& output, std::span<const std::size_t> counts);
  Batch& gather(const TensorView& input, const TensorView& output, int root);
  Batch& scatter(const TensorView& input, const TensorView& output, int root);
  Batch& reduce_scatter(const TensorView& input, const TensorView& output, ReduceOp op = ReduceOp::sum);
  Batch& all_to_all(const TensorView& input, const TensorView& output);
  Batch& send(const TensorView& tensor, int peer, std::uint32_t tag = 0);
  Batch& recv(const TensorView& tensor, int peer, std::uint32_t tag = 0);
  /// @}

  std::size_t size() const noexcept { return operations_.size(); }  ///< operations added since the last start()

  /// Starts what was added since the last start(). The Work finishes when the last operation does, and fails when one
  /// fails. Throws Error(invalid_argument) for an empty batch, and for operations that cannot start together.
  Work start(CallOptions options = {});

 private:
  Batch& add(Operation operation);

  ProcessGroup group_;
  const char* call_ = nullptr;
  std::size_t row_ = 0;
  std::vector<Operation> operations_;
};

}  // namespace ddp
