// The driver API's Event Management.
#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"

namespace fake_cuda {

CUresult find_event(CUevent handle, Event*& event) {
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  event = reinterpret_cast<Event*>(handle);
  if (!state().events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
  return event->context->failed;
}

namespace {

/// CUDA_ERROR_CAPTURED_EVENT: "The operation is not permitted on an event which was last recorded in a capturing
/// stream." It also invalidates the capture (Programming Guide, Prohibited and Unhandled Operations).
CUresult refuse_captured_event(Event& event) {
  if (!event.capture) return CUDA_SUCCESS;
  if (event.capture->active) invalidate(*event.capture);
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult record(CUevent event_handle, CUstream handle, unsigned flags) {
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  Event* event = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = find_event(event_handle, event); code != CUDA_SUCCESS) return code;
  // "hEvent and hStream must be from the same context otherwise CUDA_ERROR_INVALID_HANDLE is returned."
  if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return capture_record(*stream, *event, flags);
  // CU_EVENT_RECORD_EXTERNAL: "... this flag is invalid outside of stream capture."
  if (flags != CU_EVENT_RECORD_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  // "Captures in hEvent the contents of hStream at the time of this call. ... Repeated calls: the most recent ...
  // overwrite"
  MarkerPtr marker;
  const CUresult code = submit(*stream, nullptr, {}, &marker);
  if (code != CUDA_SUCCESS) return code;
  event->marker = std::move(marker);
  event->capture.reset();
  event->nodes.clear();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  FAKE_CUDA_CALL(cuEventCreate);
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;  // CU_EVENT_INTERPROCESS is not supported
  if (handle == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  auto* event = new Event;
  event->context = context;
  event->flags = flags;
  state().events.insert(event);
  *handle = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

/// "An event may be destroyed before it is complete ... In this case, the call does not block on completion of the
/// event".
CUresult cuEventDestroy(CUevent handle) {
  FAKE_CUDA_CALL(cuEventDestroy);
  const Lock lock(state().mutex);
  auto* event = reinterpret_cast<Event*>(handle);
  if (state().events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKE_CUDA_CALL(cuEventRecord);
  return record(event, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  FAKE_CUDA_CALL(cuEventRecordWithFlags);
  return record(event, stream, flags);
}

/// "If cuEventRecord() has not been called on hEvent, CUDA_SUCCESS is returned."
CUresult cuEventQuery(CUevent handle) {
  FAKE_CUDA_CALL(cuEventQuery);
  const Lock lock(state().mutex);
  Event* event = nullptr;
  if (const CUresult code = find_event(handle, event); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_captured_event(*event); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  return !event->marker || event->marker->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  FAKE_CUDA_CALL(cuEventSynchronize);
  Lock lock(state().mutex);
  Event* event = nullptr;
  if (const CUresult code = find_event(handle, event); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_captured_event(*event); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  const Context& context = *event->context;  // the event may be destroyed meanwhile
  return event->marker ? wait_for(lock, {event->marker}, context) : CUDA_SUCCESS;
}

/// "If either event was last recorded in a non-NULL stream..."; CUDA_ERROR_INVALID_HANDLE without a record or with
/// CU_EVENT_DISABLE_TIMING, CUDA_ERROR_NOT_READY before both are over.
CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  FAKE_CUDA_CALL(cuEventElapsedTime);
  const Lock lock(state().mutex);
  Event* start = nullptr;
  Event* end = nullptr;
  if (const CUresult code = find_event(start_handle, start); code != CUDA_SUCCESS) return code;
  if (const CUresult code = find_event(end_handle, end); code != CUDA_SUCCESS) return code;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || !start->marker || !end->marker ||
      start->context != end->context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->marker->done || !end->marker->done) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(end->marker->at - start->marker->at).count();
  return CUDA_SUCCESS;
}
}

}  // namespace fake_cuda
