// Events, which order streams among each other and tell the host when work on a stream is over; and a pool of them,
// since creating one takes a lock of the driver.
#pragma once

#include <mutex>
#include <vector>

#include "cuda/context.hpp"

namespace ddp::cuda {

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
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// An event that may have been recorded before: record it before it is waited for. Throws Error.
  Event take();
  /// Takes one back. It may be recorded and not completed.
  void give_back(Event event) noexcept;

 private:
  ContextPtr context_;
  std::mutex mutex_;
  std::vector<Event> free_;
};

}  // namespace ddp::cuda
