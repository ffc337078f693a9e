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

}  // namespace fake_cuda
