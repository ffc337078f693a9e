#include "cuda/event.hpp"

#include <utility>

#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::cuda {

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
