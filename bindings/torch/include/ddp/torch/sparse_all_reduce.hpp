// all_reduce of sparse tensors, for c10d's Backend.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/process_group.hpp>

#include <ddp/torch/device_streams.hpp>
#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// Adds the tensors of all ranks like PyTorch's gloo backend: each coalesced, then in rank order, so that the sums have
/// the same bits. Ranks send coordinates and values.
class SparseAllReduce {
 public:
  /// Collective. Waits for the other ranks, whose numbers of elements it needs. Throws Error: mismatch on all ranks if
  /// their tensors differ in shape or element type.
  SparseAllReduce(ddp::ProcessGroup group, const at::Tensor& tensor, Deadline deadline)
      : group_(std::move(group)), tensor_(tensor), deadline_(deadline) {
    if (!tensor.is_cpu()) {
      throw_invalid_argument("adding sparse tensors", "one is " + description(), "move it to the CPU");
    }
    const at::NoGradGuard no_grad;
    own_ = tensor.coalesce();
    exchange_counts();
  }

  /// Starts the exchange; call finish() once the Work has ended.
  Work start() {
    const at::NoGradGuard no_grad;
    const at::Tensor indices = own_._indices().contiguous();
    const at::Tensor values = own_._values().contiguous();
    const at::Tensor sent = at::empty({static_cast<std::int64_t>(bytes_of(own_._nnz()))}, at::kByte);
    auto* const place = static_cast<std::byte*>(sent.data_ptr());
    copy(place, indices.data_ptr(), indices.nbytes());
    copy(place + indices.nbytes(), values.data_ptr(), values.nbytes());
    std::vector<std::size_t> bytes;
    for (const std::int64_t count : counts_) bytes.push_back(bytes_of(count));
    received_ = at::empty({static_cast<std::int64_t>(std::reduce(bytes.begin(), bytes.end()))}, at::kByte);
    CallOptions options{deadline_, std::make_shared<const std::pair<at::Tensor, at::Tensor>>(sent, received_)};
    return group_.all_gather_v(memory_of(sent, "all_reduce"), memory_of(received_, "all_reduce"), bytes,
                               std::move(options));
  }

  /// Writes the sum to the tensor.
  void finish() {
    const at::NoGradGuard no_grad;
    const auto* next = static_cast<const std::byte*>(received_.data_ptr());
    at::Tensor sum;
    for (const std::int64_t count : counts_) {
      std::vector<std::int64_t> shape = own_._values().sizes().vec();
      shape.front() = count;
      const at::Tensor indices = at::empty({own_.sparse_dim(), count}, at::kLong);
      const at::Tensor values = at::empty(shape, own_._values().options());
      next = copy(indices.data_ptr(), next, indices.nbytes());
      next = copy(values.data_ptr(), next, values.nbytes());
      const at::Tensor part = at::sparse_coo_tensor(indices, values, own_.sizes(), own_.options());
      sum = sum.defined() ? sum.add_(part) : part;
    }
    tensor_.copy_(sum.coalesce());
  }

 private:
  std::string description() const {
    return "sparse in " + std::to_string(tensor_.sparse_dim()) + " dimensions, " + description_of(tensor_);
  }
  std::size_t bytes_of(std::int64_t count) const {
    const at::Tensor values = own_._values();
    std::int64_t elements = 1;  // of a value
    for (std::int64_t i = 1; i < values.dim(); ++i) elements *= values.size(i);
    return static_cast<std::size_t>(count) * (static_cast<std::size_t>(own_.sparse_dim()) * sizeof(std::int64_t) +
                                              static_cast<std::size_t>(elements) * values.element_size());
  }
  static const std::byte* copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return static_cast<const std::byte*>(from) + bytes;
  }

  void exchange_counts() {
    struct Messages {
      std::vector<std::int64_t> own;
      std::vector<std::int64_t> all;
    };
    const auto messages = std::make_shared<Messages>();
    std::uint64_t kind = 0xcbf29ce484222325U;  // FNV-1a
    for (const char each : description()) kind = (kind ^ static_cast<unsigned char>(each)) * 0x100000001b3U;
    messages->own = {own_._nnz(), static_cast<std::int64_t>(kind)};
    messages->all.resize(2 * static_cast<std::size_t>(group_.size()));
    const Work work = group_.all_gather(messages->own, messages->all, CallOptions{deadline_, messages});
    interruptible([work] { work.wait(); });
    std::vector<int> others;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto place = 2 * static_cast<std::size_t>(rank);
      counts_.push_back(messages->all[place]);
      if (messages->all[place + 1] != messages->all[1]) {
        others.push_back(group_.global_ranks()[static_cast<std::size_t>(rank)]);
      }
    }
    if (others.empty()) return;
    throw Error{{.code = ErrorCode::mismatch,
                 .attempted = "adding sparse tensors",
                 .cause = "they differ from rank " + std::to_string(group_.global_ranks()[0]) +
                          "'s in shape, dimensions or element type; this rank's is " + description(),
                 .ranks = std::move(others),
                 .hint = "give the same kind of tensor on all ranks"}};
  }

  ddp::ProcessGroup group_;
  at::Tensor tensor_;
  at::Tensor own_;
  at::Tensor received_;
  std::vector<std::int64_t> counts_;  ///< by rank
  std::optional<Deadline> deadline_;
};

}  // namespace ddp::torch
