// Python objects as tensors, without a copy: by the buffer protocol (numpy, array, memoryview) or DLPack (PyTorch, JAX,
// CuPy).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

#include <nanobind/nanobind.h>

#include "dropped_objects.hpp"

namespace ddp::python {

enum class Access { read, write };

/// The tensors of one operation. Used with the GIL; the owner that it makes may go anywhere.
class TensorArguments {
 public:
  /// @param stream the cudaStream_t that the caller gives, as an integer; nothing: the device's default stream.
  explicit TensorArguments(std::optional<std::uintptr_t> stream = {}) : stream_(stream) {}
  TensorArguments(const TensorArguments&) = delete;
  TensorArguments& operator=(const TensorArguments&) = delete;
  ~TensorArguments() { release(held_); }

  /// The memory of @p object. Throws Error(invalid_argument) for what is no dense tensor of a known type, or cannot be
  /// written. @param name of the argument, for messages. None gives an empty view if @p optional.
  TensorView add(nanobind::handle object, const char* name, Access access, bool optional = false);

  /// Keeps all that was added alive; nothing is left here.
  std::shared_ptr<const void> owner() { return held_ == nullptr ? nullptr : hold(std::exchange(held_, nullptr)); }

  /// Of the first tensor on a CUDA device.
  std::optional<Stream> stream() const;

 private:
  TensorView add_buffer(nanobind::handle object, const char* name, Access access, HeldObject& held);
  TensorView add_dlpack(nanobind::handle object, const char* name, Access access, HeldObject& held);

  std::optional<std::uintptr_t> stream_;
  std::optional<Device> device_;
  HeldObject* held_ = nullptr;
};

}  // namespace ddp::python
