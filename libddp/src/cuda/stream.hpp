// Streams: libddp's own, and the program's, which are only borrowed. A cudaStream_t of CUDA's runtime is a CUstream.
#pragma once

#include "cuda/context.hpp"

namespace ddp::cuda {

/// How urgent a stream's work is, within what the device offers.
enum class StreamPriority { normal, highest };

/// How a stream stands in a capture into a graph (CUDA graphs).
struct CaptureState {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;        ///< of the capture, unique in the process
  CUgraph graph = nullptr;  ///< which it fills: for cuGraphRetainUserObject
  bool capturing() const noexcept { return status != CU_STREAM_CAPTURE_STATUS_NONE; }
};

/// A stream, owned or borrowed. Move-only. Calls need its context to be current.
class Stream {
 public:
  /// A new one that does not synchronize with the default stream (CU_STREAM_NON_BLOCKING). Throws Error.
  Stream(ContextPtr context, StreamPriority priority);
  /// Somebody else's; it must live as long as this.
  static Stream borrow(CUstream stream) noexcept { return Stream(stream); }
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Work that is still in it goes on; its resources go when that is over.
  ~Stream();

  CUstream get() const noexcept { return stream_; }

  /// What is put into it from now on waits for what @p event has recorded by now. Throws Error.
  void wait(CUevent event) const;
  /// CUDA_SUCCESS: all its work is over; CUDA_ERROR_NOT_READY: not yet; else an error, maybe of earlier work.
  CUresult query() const noexcept;
  /// Throws Error.
  CaptureState capture_state() const { return capture_state_of(stream_); }
  static CaptureState capture_state_of(CUstream stream);

 private:
  explicit Stream(CUstream stream) noexcept : stream_(stream) {}

  ContextPtr context_;  ///< empty if borrowed
  CUstream stream_ = nullptr;
};

}  // namespace ddp::cuda
