// Keeps a module's gradients where a Reducer averages them: in memory of their own, or in its buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <ddp/reducer.hpp>
#include <ddp/torch/mixed_precision.hpp>
#include <ddp/torch/module_tensors.hpp>
#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

// ---- Bucket memory and the gradients in it: tensors keep their bucket alive after the Reducer has released it.

class BucketMemory {
 public:
  explicit BucketMemory(ddp::ProcessGroup group) : group_(std::move(group)) {}
  void change_group(ddp::ProcessGroup group) { group_ = std::move(group); }

  /// On the CPU libtorch's memory, aligned to 64 bytes; on a device the group's.
  std::shared_ptr<void> allocate(std::size_t bytes, Device device) {
    std::erase_if(blocks_, [](const Block& block) { return block.memory.expired(); });
    std::shared_ptr<void> memory = device.type == DeviceType::cpu ? on_host(bytes) : group_.allocate(bytes);
    blocks_.push_back({static_cast<std::byte*>(memory.get()), bytes, memory});
    return memory;
  }

  /// A tensor laid out like @p parameter at @p place in a bucket.
  at::Tensor tensor_at(void* place, const at::Tensor& parameter) const {
    if (parameter.numel() == 0) return at::empty_like(parameter);
    return at::from_blob(
        place, parameter.sizes(), parameter.strides(), [owner = owner_of(place)](void*) {},
        parameter.options().requires_grad(false), parameter.device());
  }

  /// Moves a view of a gradient there, and the gradient with it if it is that view.
  void move(at::Tensor& view, at::Tensor& gradient, void* place, const at::Tensor& parameter) const {
    at::Tensor there = tensor_at(place, parameter);
    if (gradient.defined() && view.defined() && gradient.data_ptr() == view.data_ptr()) gradient = there;
    view = std::move(there);
  }

 private:
  static std::shared_ptr<void> on_host(std::size_t bytes) {
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    // emptied explicitly, since blocks_ keeps the deleter itself
    return {tensor.data_ptr(), [tensor](void*) mutable { tensor.reset(); }};
  }

  struct Block {
    std::byte* begin;
    std::size_t bytes;
    std::weak_ptr<void> memory;
  };

  std::shared_ptr<void> owner_of(const void* place) const {
    for (const Block& block : blocks_) {
      const auto* const byte = static_cast<const std::byte*>(place);
      if (std::less_equal<>{}(block.begin, byte) && std::less<>{}(byte, block.begin + block.bytes)) {
        return block.memory.lock();
      }
    }
    return nullptr;
  }

  ddp::ProcessGroup group_;
  std::vector<Block> blocks_;
};

// ---- Sparse gradients of embeddings as a Reducer exchanges them: rows and their values.

/// The parameters whose gradients are sparse: of Embedding and EmbeddingBag with sparse(true).
inline std::set<const void*> sparse_parameters(const ::torch::nn::Module& module) {
  std::set<const void*> found;
  for (const auto& each : module.modules()) {
    if (const auto* const embedding = each->as<::torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) found.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* const bag = each->as<::torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) found.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return found;
}

/// Throws Error(invalid_argument) unless @p gradient consists of rows of @p parameter. @param kept owns the returned
/// memory
inline SparseGradient rows_of(const at::Tensor& gradient, const at::Tensor& parameter, at::Tensor& kept,
                              const std::string& attempted) {
  if (gradient.layout() != at::kSparse || gradient.sparse_dim() != 1 || gradient.sizes() != parameter.sizes()) {
    throw_invalid_argument(attempted, "it is " + description_of(gradient) + ", not rows of its parameter in COO layout",
                           "use the weight of a sparse embedding in nothing else, or leave its sparse off");
  }
  kept = gradient.coalesce();
  if (kept.scalar_type() != parameter.scalar_type()) kept = kept.to(parameter.scalar_type());
  return {.rows = memory_of(kept._indices().select(0, 0), attempted), .values = memory_of(kept._values(), attempted)};
}

/// A copy of a Reducer's average; on a device, made in the current stream.
inline at::Tensor sparse_tensor(const SparseGradient& average, const at::Tensor& parameter) {
  const auto count = static_cast<std::int64_t>(average.rows.numel());
  const at::Tensor indices = at::empty({1, count}, parameter.options().dtype(at::kLong).requires_grad(false));
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape.front() = count;
  const at::Tensor values = at::empty(shape, parameter.options().requires_grad(false));
  if (count > 0) {
    copy_elements(average.rows, indices);
    copy_elements(average.values, values);
  }
  return at::_sparse_coo_tensor_unsafe(indices, values, parameter.sizes(), values.options().layout(at::kSparse),
                                       /*is_coalesced=*/true);
}

/// Indices refer to the tensors. One thread at a time, except mark() of different indices.
class GradientPlaces {
 public:
  /// @param tensors must stay in place. @param low may be null. @param in_buckets gradient_as_bucket_view
  GradientPlaces(const std::vector<NamedTensor>& tensors, std::shared_ptr<LowPrecisionParameters> low,
                 const ddp::ProcessGroup& group, bool in_buckets)
      : tensors_(tensors),
        low_(std::move(low)),
        in_buckets_(in_buckets),
        memory_(std::make_shared<BucketMemory>(group)),
        held_(tensors.size()),
        views_(tensors.size()),
        marked_(tensors.size()) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].tensor.requires_grad()) own_.push_back(i);
    }
  }

  bool in_buckets() const noexcept { return in_buckets_; }
  const std::shared_ptr<BucketMemory>& memory() const noexcept { return memory_; }
  /// Indices of the averaged gradients.
  const std::vector<std::size_t>& own() const noexcept { return own_; }
  bool marked(std::size_t index) const { return marked_[index]; }
  /// Clears all marks for a new step.
  void start_step() { marked_.assign(tensors_.size(), false); }
  /// Releases kept gradients.
  void let_go() { held_.assign(tensors_.size(), at::Tensor{}); }
  const std::vector<at::Tensor>& held() const noexcept { return held_; }

  /// Marks a gradient that autograd has computed.
  template <class... Producer>
  void mark(Reducer& reducer, std::size_t index, const Producer&... producer) {
    if (tensors_[index].sparse) {
      marked_[index] = true;
      return reducer.mark_ready(index, rows_at(index), producer...);
    }
    at::Tensor& gradient = gradient_of(index);
    if (!gradient.defined()) gradient = laid_out_like(like(index)).zero_();
    place(index, gradient);
    marked_[index] = true;
    if (lives_in_bucket(index)) return reducer.mark_ready(index, producer...);
    reducer.mark_ready(index, memory_at(index), producer...);
  }

  /// Gives the Reducer all existing gradients, since some parameters may not get a new one.
  void place_all(Reducer& reducer) {
    for (const std::size_t index : own_) {
      if (tensors_[index].sparse) {
        reducer.place_gradient(index, rows_at(index));
        continue;
      }
      at::Tensor& gradient = gradient_of(index);
      held_[index].reset();
      if (gradient.defined()) place(index, gradient);
      reducer.place_gradient(index, gradient.defined() ? memory_at(index) : TensorView{});
    }
  }

  /// Points gradients to the bucket places that the Reducer has moved them to.
  void take_over(const Reducer& reducer, std::span<const std::size_t> indices) {
    const at::AutoGradMode no_grad(false);
    for (const std::size_t index : indices) {
      if (!held_[index].defined()) continue;
      void* const place = reducer.bucket_view(index).data();
      const bool known = views_[index].defined() && views_[index].data_ptr() == place;
      gradient_of(index) = known ? views_[index] : memory_->tensor_at(place, like(index));
      held_[index].reset();
    }
  }

  /// Follows buckets that may have been rebuilt.
  void move_views(const Reducer& reducer) {
    if (!in_buckets_) return;
    bool first = true;
    for (const std::size_t index : own_) {
      if (tensors_[index].sparse) continue;
      void* const place = reducer.bucket_view(index).data();
      const bool stays = views_[index].defined() && views_[index].data_ptr() == place;
      if (std::exchange(first, false) && stays) return;
      memory_->move(views_[index], gradient_of(index), place, like(index));
    }
  }

  /// After a step, takes the average for parameters that only other ranks used.
  void take_others(const Reducer& reducer) {
    for (const std::size_t index : own_) {
      if (marked_[index] || tensors_[index].sparse || !reducer.used(index)) continue;
      at::Tensor& gradient = gradient_of(index);
      if (in_buckets_) {
        gradient = views_[index];
      } else if (const TensorView average = reducer.bucket_view(index); !gradient.defined() && average.data()) {
        gradient = laid_out_like(like(index));
        copy_elements(average, gradient);
      }
    }
  }

  void take_sparse(const Reducer& reducer) {
    for (const std::size_t i : own_) {
      if (!tensors_[i].sparse || !reducer.used(i)) continue;
      gradient_of(i) = sparse_tensor(reducer.sparse_average(i), like(i));
    }
  }

  std::string attempted(std::size_t index) const { return "averaging the gradient of '" + tensors_[index].name + "'"; }

 private:
  at::Tensor& gradient_of(std::size_t index) const { return tensors_[index].tensor.mutable_grad(); }
  /// The tensor that a parameter's gradient resembles.
  const at::Tensor& like(std::size_t index) const { return low_ ? low_->master(index) : tensors_[index].tensor; }

  bool lives_in_bucket(std::size_t index) const {
    return in_buckets_ && gradient_of(index).data_ptr() == views_[index].data_ptr();
  }
  TensorView memory_at(std::size_t index) const {
    return memory_of(gradient_of(index), [&] { return attempted(index); });
  }

  /// Lays out @p gradient as the Reducer wants it, and keeps it unless it is in its bucket.
  void place(std::size_t index, at::Tensor& gradient) {
    const at::Tensor& parameter = like(index);
    const bool low = low_ && gradient.scalar_type() == low_->type();
    if (gradient.layout() != at::kStrided) {
      throw_invalid_argument(attempted(index), "it is sparse",
                             "make it dense (sparse=False), or take it from an Embedding or EmbeddingBag; in C++ "
                             "DistributedDataParallelOptions::sparse can name its parameter");
    }
    if (in_buckets_) {
      const at::Tensor& view = views_[index];
      if (gradient.data_ptr() == view.data_ptr() && lies_like(gradient, parameter)) return;
      if ((gradient.scalar_type() != view.scalar_type() && !low) || gradient.sizes() != view.sizes()) {
        throw_invalid_argument(attempted(index), "it is " + description_of(gradient) + ", not as its parameter",
                               "leave gradients to autograd");
      }
    }
    const bool other_type = low && gradient.scalar_type() != parameter.scalar_type();
    if ((other_type || !lies_like(gradient, parameter)) && gradient.sizes() == parameter.sizes()) {
      gradient = laid_out_like(parameter).copy_(gradient);
    }
    held_[index] = gradient;
  }

  SparseGradient rows_at(std::size_t index) {
    const at::Tensor& gradient = tensors_[index].tensor.grad();
    return gradient.defined() ? rows_of(gradient, like(index), held_[index], attempted(index)) : SparseGradient{};
  }

  const std::vector<NamedTensor>& tensors_;
  const std::shared_ptr<LowPrecisionParameters> low_;  ///< null: computes in the parameters' own types
  const bool in_buckets_;
  const std::shared_ptr<BucketMemory> memory_;
  std::vector<std::size_t> own_;
  std::vector<at::Tensor> held_;   ///< gradients that the Reducer refers to, until they are averaged
  std::vector<at::Tensor> views_;  ///< their places in the buckets
  std::vector<bool> marked_;       ///< in this step
};

}  // namespace ddp::torch
