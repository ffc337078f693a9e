// The driver API's Error Handling: names and texts of what the double returns, and of what tests make it return.
#include <array>

#include "tests/support/fake_cuda/symbols.hpp"

namespace {

struct Entry {
  CUresult code;
  const char* name;
  const char* text;
};
#define ENTRY(code, text) \
  Entry { code, #code, text }
constexpr std::array kEntries{
    ENTRY(CUDA_SUCCESS, "no error"),
    ENTRY(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ENTRY(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ENTRY(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ENTRY(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ENTRY(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    ENTRY(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ENTRY(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ENTRY(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ENTRY(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ENTRY(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ENTRY(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    ENTRY(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    ENTRY(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ENTRY(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ENTRY(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ENTRY(CUDA_ERROR_NOT_READY, "device not ready"),
    ENTRY(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ENTRY(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    ENTRY(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    ENTRY(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    ENTRY(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ENTRY(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ENTRY(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ENTRY(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    ENTRY(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ENTRY(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef ENTRY

const Entry* find(CUresult code) {
  for (const Entry& entry : kEntries) {
    if (entry.code == code) return &entry;
  }
  return nullptr;
}

}  // namespace

extern "C" {

/// "If the error code is not recognized, CUDA_ERROR_INVALID_VALUE will be returned and *pStr will be set to NULL".
CUresult cuGetErrorName(CUresult code, const char** text) {
  const Entry* entry = find(code);
  *text = entry == nullptr ? nullptr : entry->name;
  return entry == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  const Entry* entry = find(code);
  *text = entry == nullptr ? nullptr : entry->text;
  return entry == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
}
