// A CUDA device by the driver API, which is opened when it is needed: the program also starts where there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cuda.h>

namespace digits::cuda {

/// The functions that this example calls.
struct DriverFunctions;

/// A device's primary context, current in the thread that made it, one stream, and this example's kernels. Everything
/// is put into the stream; calls return before it is done.
class Gpu {
 public:
  /// How many devices the process sees. Throws ddp::Error(unavailable) without a driver.
  static int count();

  /// Throws ddp::Error.
  explicit Gpu(int index);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  int index() const { return index_; }
  CUstream stream() const { return stream_; }

  /// Zeroed memory, which lives as long as this object.
  template <class T>
  T* allocate(std::size_t count) {
    return static_cast<T*>(allocate_bytes(count * sizeof(T)));
  }
  /// @p from must stay until wait().
  template <class T>
  void upload(T* to, std::span<const T> from) {
    copy(to, from.data(), from.size_bytes());
  }
  template <class T>
  void download(std::span<T> to, const T* from) {
    copy(to.data(), from, to.size_bytes());
    wait();
  }
  /// Runs a step of steps.hpp; none for no elements.
  template <class Step>
  void run(const Step& step) {
    if (step.elements != 0) launch(name_of(step), &step, step.elements);
  }
  /// Until all is done that was put into the stream.
  void wait();

 private:
  template <class Step>
  static const char* name_of(const Step& step);
  void* allocate_bytes(std::size_t bytes);
  void copy(void* to, const void* from, std::size_t bytes);
  void launch(const char* name, const void* step, std::uint32_t elements);

  const DriverFunctions& driver_;
  int index_;
  CUdevice device_ = 0;
  CUmodule module_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> memory_;
};

}  // namespace digits::cuda

#include "digits/cuda/steps.hpp"

namespace digits::cuda {

#define DIGITS_NAME(Step, name)                  \
  template <>                                    \
  inline const char* Gpu::name_of(const Step&) { \
    return #name;                                \
  }
DIGITS_STEPS(DIGITS_NAME)
#undef DIGITS_NAME

}  // namespace digits::cuda
