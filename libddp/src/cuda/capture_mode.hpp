// Lets a thread call what CUDA forbids while any stream of the process is captured into a graph.
#pragma once

#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::cuda {

/// Relaxes this thread's capture mode (cuThreadExchangeStreamCaptureMode). Without it, an event query of a watchdog
/// invalidates a capture that another thread began in global mode, which is the default. On one thread's stack only.
class RelaxedCaptureScope {
 public:
  /// Throws Error.
  RelaxedCaptureScope() {
    check(driver().thread_exchange_stream_capture_mode(&mode_), "relaxing the thread's stream capture mode");
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;
  ~RelaxedCaptureScope() {
    log_failure(driver().thread_exchange_stream_capture_mode(&mode_), "restoring the thread's stream capture mode");
  }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  ///< the other one: the next to set
};

}  // namespace ddp::cuda
