// The driver API's Stream Management.
#include "tests/support/fake_cuda/streams.hpp"

#include <algorithm>

#include "tests/support/fake_cuda/call.hpp"
#include "tests/support/fake_cuda/capture.hpp"

namespace fake_cuda {

CUresult find_stream(CUstream handle, Stream*& stream) {
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    stream = &legacy_stream(*context);
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_NOT_SUPPORTED;  // nobody here uses it
  stream = reinterpret_cast<Stream*>(handle);
  if (!state().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return stream->context->failed;
}

CUresult launch(CUstream handle, WorkPtr work) {
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  // "A kernel launch will fail if it is issued to a stream that is not associated to the current device." (Programming
  // Guide, Multi-Device System, Stream and Event Behavior)
  if (stream->context != current_context()) return CUDA_ERROR_INVALID_HANDLE;
  return submit(*stream, std::move(work));
}

extern "C" {

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CUDA_CALL(cuCtxGetStreamPriorityRange);
  const Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  FAKE_CUDA_CALL(cuStreamCreateWithPriority);
  if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock(state().mutex);
  Context* context = nullptr;
  if (const CUresult code = usable_context(context); code != CUDA_SUCCESS) return code;
  // "If priority is outside the numerical range returned by cuCtxGetStreamPriorityRange, it will automatically be
  // clamped"
  Stream* stream = make_stream(*context, flags, std::clamp(priority, kGreatestPriority, kLeastPriority));
  context->streams.insert(stream);
  state().streams.insert(stream);
  *handle = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}

/// "In case the device is still doing work in the stream when cuStreamDestroy() is called, the function will return
/// immediately and the resources will be released automatically once the device has completed all work in hStream."
CUresult cuStreamDestroy(CUstream handle) {
  FAKE_CUDA_CALL(cuStreamDestroy);
  const Lock lock(state().mutex);
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (!state().streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) invalidate(*stream->capture);
  state().streams.erase(stream);
  stream->context->streams.erase(stream);
  stream->capture.reset();
  stream->closed = true;
  stream->wake.notify_one();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  FAKE_CUDA_CALL(cuStreamGetPriority);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
  FAKE_CUDA_CALL(cuStreamGetFlags);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  FAKE_CUDA_CALL(cuStreamGetCtx);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  *context = reinterpret_cast<CUcontext>(stream->context);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  FAKE_CUDA_CALL(cuStreamQuery);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_captured(*stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  return !stream->last || stream->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream handle) {
  FAKE_CUDA_CALL(cuStreamSynchronize);
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_captured(*stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = refuse_unsafe(); code != CUDA_SUCCESS) return code;
  std::vector<MarkerPtr> markers;
  if (stream == stream->context->legacy) {  // it comes after all blocking streams
    markers.push_back(put_in(*stream, nullptr, {}));
  } else if (stream->last) {
    markers.push_back(stream->last);
  }
  return wait_for(lock, markers, *stream->context);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  FAKE_CUDA_CALL(cuStreamWaitEvent);
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  Event* event = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  if (const CUresult code = find_event(event_handle, event); code != CUDA_SUCCESS) return code;
  CUresult captured = CUDA_SUCCESS;
  if (capture_wait(*stream, *event, flags, captured)) return captured;
  // The record that is visible at this call counts. "If cuEventRecord() has not been called on hEvent, this call acts
  // as if the record has already completed, and so is a functional no-op."
  if (!event->marker || event->marker->done) return CUDA_SUCCESS;
  return submit(*stream, nullptr, {event->marker});
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  FAKE_CUDA_CALL(cuLaunchHostFunc);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto work = std::make_shared<const Work>(
      Work{.label = "host_function", .kind = WorkKind::host_function, .run = [function, argument] {
             function(argument);
             return CUDA_SUCCESS;
           }});
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const CUresult code = find_stream(handle, stream); code != CUDA_SUCCESS) return code;
  return submit(*stream, std::move(work));
}
}

// The driver API's Event Management.

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
