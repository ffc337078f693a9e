// Buckets' memory, and gradients that live in it: tensors that keep their bucket alive when the Reducer lets it go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include <ddp/reducer.hpp>

namespace ddp::torch {

class BucketMemory {
 public:
  /// libtorch's, which is aligned to 64 bytes.
  std::shared_ptr<void> allocate(std::size_t bytes) {
    std::erase_if(blocks_, [](const Block& block) { return block.memory.expired(); });
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
    // emptied, since blocks_ keeps the deleter itself
    std::shared_ptr<void> memory{tensor.data_ptr(), [tensor](void*) mutable { tensor.reset(); }};
    blocks_.push_back({static_cast<std::byte*>(memory.get()), bytes, memory});
    return memory;
  }

  /// A tensor that lies like @p parameter, at @p place of a bucket.
  at::Tensor tensor_at(void* place, const at::Tensor& parameter) const {
    if (parameter.numel() == 0) return at::empty_like(parameter);
    return at::from_blob(
        place, parameter.sizes(), parameter.strides(), [owner = owner_of(place)](void*) {},
        parameter.options().requires_grad(false));
  }

 private:
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

  std::vector<Block> blocks_;
};

}  // namespace ddp::torch
