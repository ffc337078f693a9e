#include "cuda/stream.hpp"

#include <utility>

namespace ddp::cuda {

Stream::Stream(ContextPtr context, StreamPriority priority) : context_(std::move(context)) {
  const ContextScope scope(*context_);
  int least = 0;
  int greatest = 0;  // lower numbers are more urgent; both 0 where the device has no priorities
  check(driver().ctx_get_stream_priority_range(&least, &greatest), "asking for the priorities of CUDA streams");
  check(driver().stream_create_with_priority(&stream_, CU_STREAM_NON_BLOCKING,
                                             priority == StreamPriority::highest ? greatest : 0),
        "creating a CUDA stream");
}

Stream::Stream(Stream&& other) noexcept
    : context_(std::move(other.context_)), stream_(std::exchange(other.stream_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(stream_, other.stream_);
  return *this;
}

Stream::~Stream() {
  if (!context_) return;
  destroy_in(
      *context_, [this] { return driver().stream_destroy(stream_); }, "destroying a CUDA stream");
}

void Stream::wait(CUevent event) const {
  check(driver().stream_wait_event(stream_, event, 0), "making a CUDA stream wait for an event");
}

CUresult Stream::query() const noexcept { return driver().stream_query(stream_); }

CaptureState Stream::capture_state_of(CUstream stream) {
  CaptureState state;
  check(driver().stream_get_capture_info(stream, &state.status, &state.id, &state.graph, nullptr, nullptr),
        "asking whether a CUDA stream is being captured");
  return state;
}

Event::Event(ContextPtr context) : context_(std::move(context)) {
  const ContextScope scope(*context_);
  check(driver().event_create(&event_, CU_EVENT_DISABLE_TIMING), "creating a CUDA event");
}

Event::Event(Event&& other) noexcept
    : context_(std::move(other.context_)), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ != nullptr)
    destroy_in(
        *context_, [this] { return driver().event_destroy(event_); }, "destroying a CUDA event");
}

void Event::record(CUstream stream) { check(driver().event_record(event_, stream), "recording a CUDA event"); }
CUresult Event::query() const noexcept { return driver().event_query(event_); }

Event EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Event event = std::move(free_.back());
      free_.pop_back();
      return event;
    }
  }
  return Event(context_);
}

void EventPool::give_back(Event event) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(event));
  } catch (...) {  // no memory to remember it: it is destroyed
  }
}

}  // namespace ddp::cuda
