// Streams: libddp's own, and the program's, which are only borrowed. A cudaStream_t of CUDA's runtime is a CUstream.
#pragma once

#include <mutex>
#include <vector>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"

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
  /// Work that is still in it continues; its resources go when that is over.
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

// ---- Events, which order streams among each other and tell the host when work on a stream is over; and a pool of
// them, since creating one takes a lock of the driver.

/// Owns an event without timing, which makes it cheap to record and to query. Move-only. May be empty.
///
/// Rules of CUDA's documentation (Event Management): recording captures what is in the stream at the call; recording
/// again overwrites; one that was never recorded counts as completed. Calls need the event's context to be current.
class Event {
 public:
  Event() = default;
  /// Throws Error.
  explicit Event(ContextPtr context);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  CUevent get() const noexcept { return event_; }
  explicit operator bool() const noexcept { return event_ != nullptr; }

  /// Throws Error.
  void record(CUstream stream);
  /// CUDA_SUCCESS: completed; CUDA_ERROR_NOT_READY: not yet; else an error, maybe of earlier asynchronous work.
  CUresult query() const noexcept;

 private:
  ContextPtr context_;
  CUevent event_ = nullptr;
};

/// Keeps events of one context for the next use. Any thread.
class EventPool {
 public:
  explicit EventPool(ContextPtr context) : context_(std::move(context)) {}
  EventPool& operator=(EventPool&&) = delete;

  /// An event that may have been recorded before: record it before it is waited for. Throws Error.
  Event take();
  /// Takes one back. It may be recorded and not completed.
  void give_back(Event event) noexcept;

 private:
  ContextPtr context_;
  std::mutex mutex_;
  std::vector<Event> free_;
};

// ---- Lets a thread call what CUDA forbids while any stream of the process is captured into a graph.

/// Relaxes this thread's capture mode (cuThreadExchangeStreamCaptureMode). Without it, an event query of a watchdog
/// invalidates a capture that another thread began in global mode, which is the default. On one thread's stack only.
class RelaxedCaptureScope {
 public:
  /// Throws Error.
  RelaxedCaptureScope() {
    check(driver().thread_exchange_stream_capture_mode(&mode_), "relaxing the thread's stream capture mode");
  }
  RelaxedCaptureScope& operator=(RelaxedCaptureScope&&) = delete;
  ~RelaxedCaptureScope() {
    log_failure(driver().thread_exchange_stream_capture_mode(&mode_), "restoring the thread's stream capture mode");
  }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  ///< the other one: the next to set
};

}  // namespace ddp::cuda
