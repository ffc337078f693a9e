// Buckets' memory, and gradients that live in it: tensors that keep their bucket alive when the Reducer lets it go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/reducer.hpp>

namespace ddp::torch {

class BucketMemory {
 public:
  explicit BucketMemory(ddp::ProcessGroup group) : group_(std::move(group)) {}
  void change_group(ddp::ProcessGroup group) { group_ = std::move(group); }

  /// libtorch's, which is aligned to 64 bytes; the group's on a device.
  std::shared_ptr<void> allocate(std::size_t bytes, Device device) {
    std::erase_if(blocks_, [](const Block& block) { return block.memory.expired(); });
    std::shared_ptr<void> memory = device.type == DeviceType::cpu ? on_host(bytes) : group_.allocate(bytes);
    blocks_.push_back({static_cast<std::byte*>(memory.get()), bytes, memory});
    return memory;
  }

  /// A tensor that lies like @p parameter, at @p place of a bucket.
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
    // emptied, since blocks_ keeps the deleter itself
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

}  // namespace ddp::torch
