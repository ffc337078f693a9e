// Ranks of a group as threads of one process, each with its own device of the double of CUDA and its own NcclBackend
// over the double of NCCL; and tensors in device memory.
#pragma once

#include <dlfcn.h>

#include "collectives/nccl/nccl_backend.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "support/checkout.hpp"
#include "support/fake_cuda/fake_cuda.hpp"
#include "support/fake_nccl/fake_nccl.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::testing {

inline std::string fake_cuda_library() { return ddp::test::built_file("lib/fake_cuda/libcuda.so.1"); }
inline std::string fake_nccl_library() { return ddp::test::built_file("lib/fake_nccl/libnccl.so.2"); }

/// A function of one of the doubles.
template <class Function>
Function* double_function(const std::string& library, const char* name) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const found = handle != nullptr ? dlsym(handle, name) : nullptr;
  if (found == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Function*>(found);
}
#define FAKE_CUDA(name)                                                                                           \
  (::ddp::collectives::testing::double_function<decltype(name)>(::ddp::collectives::testing::fake_cuda_library(), \
                                                                #name))
#define FAKE_NCCL(name)                                                                                           \
  (::ddp::collectives::testing::double_function<decltype(name)>(::ddp::collectives::testing::fake_nccl_library(), \
                                                                #name))

inline constexpr int kDevices = 8;

/// Before the first use of either.
inline void use_doubles() {
  setenv("DDP_CUDA_LIBRARY", fake_cuda_library().c_str(), 1);
  setenv("DDP_NCCL_LIBRARY", fake_nccl_library().c_str(), 1);
  setenv("FAKE_CUDA_DEVICES", std::to_string(kDevices).c_str(), 1);
  setenv("FAKE_CUDA_MEMORY_MIB", "64", 1);
  setenv("DDP_NCCL_STUCK_AFTER", "1", 1);
}

/// A collective whose tensors lie in the memory of this thread's device. They are filled by work in a stream of the
/// caller's, so that an operation that does not wait for it reads poison.
class DeviceCall {
 public:
  DeviceCall(const cuda::ContextPtr& context, const Call& call, int size, int rank, std::uint64_t sequence)
      : context_(context), checked_(call, size, rank, sequence), operation_(checked_.operation()) {
    place(operation_.input, operation_.output);
  }

  Operation& operation() { return operation_; }
  /// Puts the values into the tensors, in a stream.
  void fill(CUstream stream) {
    operation_.stream.handle = stream;
    if (memory_.size_bytes() > 0) copy(memory_.get(), reinterpret_cast<CUdeviceptr>(first_), stream);
  }
  /// Compares, after the end.
  void check(CUstream stream) {
    const cuda::ContextScope scope(*context_);
    if (memory_.size_bytes() > 0) copy(reinterpret_cast<CUdeviceptr>(first_), memory_.get(), stream);
    cuda::check(cuda::driver().stream_synchronize(stream), "waiting for a test's stream");
    checked_.check();
  }

 private:
  /// Both tensors lie in one block of the host or in two; then they are copied as one, with what is between.
  void place(TensorView& input, TensorView& output) {
    auto* const in = static_cast<std::byte*>(input.data());
    auto* const out = static_cast<std::byte*>(output.data());
    const bool has_in = input.size_bytes() > 0;
    const bool has_out = output.size_bytes() > 0;
    if (!has_in && !has_out) return;
    if (has_in && has_out && in + input.size_bytes() < out + output.size_bytes() + kNear &&
        out + output.size_bytes() < in + input.size_bytes() + kNear && overlap(in, input, out, output)) {
      first_ = std::min(in, out);
      bytes_ = static_cast<std::size_t>(std::max(in + input.size_bytes(), out + output.size_bytes()) - first_);
      allocate();
      input = moved(input, static_cast<std::size_t>(in - first_));
      output = moved(output, static_cast<std::size_t>(out - first_));
      return;
    }
    if (has_in && has_out) {  // the output's place is not filled: nobody reads it
      first_ = in;
      bytes_ = input.size_bytes();
      separate_ = cuda::DeviceMemory(context_, output.size_bytes());
      output_ = out;
      allocate();
      input = moved(input, 0);
      output = TensorView(separate_.pointer(), output.dtype(), output.shape(), device());
      return;
    }
    first_ = has_in ? in : out;
    bytes_ = has_in ? input.size_bytes() : output.size_bytes();
    allocate();
    (has_in ? input : output) = moved(has_in ? input : output, 0);
  }
  static bool overlap(const std::byte* in, const TensorView& input, const std::byte* out, const TensorView& output) {
    return in < out + output.size_bytes() && out < in + input.size_bytes();
  }
  void allocate() { memory_ = cuda::DeviceMemory(context_, bytes_); }
  Device device() const { return {.type = DeviceType::cuda, .index = context_->device()}; }
  TensorView moved(const TensorView& tensor, std::size_t offset) const {
    return {static_cast<std::byte*>(memory_.pointer()) + offset, tensor.dtype(), tensor.shape(), device()};
  }
  void copy(CUdeviceptr to, CUdeviceptr from, CUstream stream) {
    const bool back = from == memory_.get();
    cuda::check(cuda::driver().memcpy_async(to, from, bytes_, stream), "copying a test's tensor");
    if (back && separate_.size_bytes() > 0) {
      cuda::check(cuda::driver().memcpy_async(reinterpret_cast<CUdeviceptr>(output_), separate_.get(),
                                              separate_.size_bytes(), stream),
                  "copying a test's tensor");
    }
  }

  static constexpr std::ptrdiff_t kNear = 1 << 30;
  cuda::ContextPtr context_;
  CheckedCall checked_;
  Operation operation_;
  std::byte* first_ = nullptr;
  std::byte* output_ = nullptr;
  std::size_t bytes_ = 0;
  cuda::DeviceMemory memory_;
  cuda::DeviceMemory separate_;
};

/// A rank's own things.
struct DeviceRank {
  explicit DeviceRank(int rank)
      : context(cuda::PrimaryContext::retain(rank)), stream(context, cuda::StreamPriority::normal) {}
  cuda::ContextPtr context;
  cuda::Stream stream;  ///< the caller's
};

inline Subject nccl_ranks(int size) {
  return {.name = "nccl" + std::to_string(size), .create = &nccl::create, .size = size};
}

}  // namespace ddp::collectives::testing
