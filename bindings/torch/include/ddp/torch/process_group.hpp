// Collectives of a process group over libtorch's tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/process_group.hpp>

#include <ddp/torch/device_streams.hpp>
#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// ddp::ProcessGroup for at::Tensor: the same operations, order, deadlines and errors. Tensors are used in place,
/// without a copy, and kept alive until the operation is finished. They must be contiguous, since elements of the ranks
/// are combined in memory order. Throws Error(invalid_argument) for tensors that are neither in the host's memory nor
/// on this rank's CUDA device, and for sparse tensors and those with gaps. Complex numbers are added and averaged;
/// types that libddp does not support are moved, but not combined. An operation on CUDA tensors waits for the work in
/// the calling thread's current stream; `work.order(stream_of(current_stream(device)))` makes that stream wait for the
/// operation, work.wait() the host.
class ProcessGroup {
 public:
  /// Wraps a handle to @p group; the group is the same.
  explicit ProcessGroup(ddp::ProcessGroup group) : group_(std::move(group)) {}
  /// @{
  /// Like ddp::ProcessGroup's.
  int rank() const noexcept { return group_.rank(); }
  int size() const noexcept { return group_.size(); }
  const std::string& name() const noexcept { return group_.name(); }
  /// @}
  ddp::ProcessGroup& group() noexcept { return group_; }  ///< for operations that this class lacks

  /// @{
  /// Like ddp::ProcessGroup's function of this name. @p deadline: default: the group's timeout from the call on.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum, std::optional<Deadline> deadline = {}) {
    return group_.all_reduce(combined(tensor, op, "all_reduce"), op, keep(deadline, {tensor}));
  }
  Work broadcast(const at::Tensor& tensor, int root, std::optional<Deadline> deadline = {}) {
    return group_.broadcast(row_major(tensor, "broadcast"), root, keep(deadline, {tensor}));
  }
  Work reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::sum, std::optional<Deadline> deadline = {}) {
    return group_.reduce(combined(tensor, op, "reduce"), root, op, keep(deadline, {tensor}));
  }
  Work all_gather(const at::Tensor& input, const at::Tensor& output, std::optional<Deadline> deadline = {}) {
    return group_.all_gather(row_major(input, "all_gather"), row_major(output, "all_gather"),
                             keep(deadline, {input, output}));
  }
  /// @param output on root; other ranks may pass an undefined tensor.
  Work gather(const at::Tensor& input, const at::Tensor& output, int root, std::optional<Deadline> deadline = {}) {
    return group_.gather(row_major(input, "gather"), row_major_if_any(output, "gather"), root,
                         keep(deadline, {input, output}));
  }
  /// @param input on root; other ranks may pass an undefined tensor.
  Work scatter(const at::Tensor& input, const at::Tensor& output, int root, std::optional<Deadline> deadline = {}) {
    return group_.scatter(row_major_if_any(input, "scatter"), row_major(output, "scatter"), root,
                          keep(deadline, {input, output}));
  }
  Work reduce_scatter(const at::Tensor& input, const at::Tensor& output, ReduceOp op = ReduceOp::sum,
                      std::optional<Deadline> deadline = {}) {
    combined(input, op, "reduce_scatter");
    return group_.reduce_scatter(row_major(input, "reduce_scatter"), row_major(output, "reduce_scatter"), op,
                                 keep(deadline, {input, output}));
  }
  Work all_to_all(const at::Tensor& input, const at::Tensor& output, std::optional<Deadline> deadline = {}) {
    return group_.all_to_all(row_major(input, "all_to_all"), row_major(output, "all_to_all"),
                             keep(deadline, {input, output}));
  }
  Work barrier(std::optional<Deadline> deadline = {}) { return group_.barrier(deadline); }
  Work send(const at::Tensor& tensor, int peer, std::uint32_t tag = 0, std::optional<Deadline> deadline = {}) {
    return group_.send(row_major(tensor, "send"), peer, tag, keep(deadline, {tensor}));
  }
  Work recv(const at::Tensor& tensor, int peer, std::uint32_t tag = 0, std::optional<Deadline> deadline = {}) {
    return group_.recv(row_major(tensor, "recv"), peer, tag, keep(deadline, {tensor}));
  }
  /// @}

  /// The memory of a tensor whose elements are combined with those of other ranks.
  static TensorView combined(const at::Tensor& tensor, ReduceOp op, const char* what) {
    if (tensor.is_complex() && op != ReduceOp::sum && op != ReduceOp::avg) {
      throw_invalid_argument(what, "complex numbers have no " + std::string{to_string(op)}, "use sum or avg");
    }
    check_order(tensor, what);
    return memory_of(tensor, what);
  }
  /// The memory of a tensor whose elements are in row-major order.
  static TensorView row_major(const at::Tensor& tensor, const char* what) {
    check_order(tensor, what);
    return bytes_of(tensor, what);
  }
  /// Options of an operation on @p tensors, which they keep alive: it waits for the current stream of a CUDA device.
  static CallOptions keep(std::optional<Deadline> deadline, std::vector<at::Tensor> tensors) {
    CallOptions options(deadline);
    for (const at::Tensor& tensor : tensors) {
      const auto device = cuda_device_of(tensor);
      if (device && !options.stream) options.stream = stream_of(current_stream(*device));
    }
    options.keep_alive = owner_of(std::move(tensors));
    return options;
  }

 private:
  static void check_order(const at::Tensor& tensor, const char* what) {
    if (tensor.layout() != at::kStrided || tensor.is_contiguous()) return;
    throw_invalid_argument(what, "a tensor " + description_of(tensor) + " is not contiguous",
                           "use its contiguous(): other ranks may have another order in memory");
  }
  static TensorView row_major_if_any(const at::Tensor& tensor, const char* what) {
    return tensor.defined() ? row_major(tensor, what) : TensorView{};
  }

  ddp::ProcessGroup group_;
};

}  // namespace ddp::torch
