// What every call of the driver API begins with: it is counted, may meet a fault, and is refused where CUDA refuses
// all.
#pragma once

#include <atomic>
#include <string_view>

#include "tests/support/fake_cuda/symbols.hpp"

namespace fake_cuda {

/// One function of the API; all are in a list.
class CallSite {
 public:
  explicit CallSite(std::string_view function);
  /// What the call shall return at once, if it is not CUDA_SUCCESS.
  CUresult enter();

 private:
  friend long ::fake_cuda_call_count(const char* function);
  std::string_view function_;
  std::atomic<long> calls_ = 0;
  CallSite* next_;
};

/// Begins a function of the API: FAKE_CUDA_CALL(cuMemAlloc). The name is taken before cuda.h's macros change it.
#define FAKE_CUDA_CALL(name)                     \
  static ::fake_cuda::CallSite call_site(#name); \
  if (const CUresult refused = call_site.enter(); refused != CUDA_SUCCESS) return refused

/// While one lives, this thread runs a function of the host for a stream or a graph. cuLaunchHostFunc: "The host
/// function must not make any CUDA API calls. Attempting to use a CUDA API may result in CUDA_ERROR_NOT_PERMITTED".
/// Here it does.
class HostFunctionScope {
 public:
  HostFunctionScope();
  ~HostFunctionScope();
  HostFunctionScope& operator=(HostFunctionScope&&) = delete;
};

/// cuInit has been called: calls are allowed. A forked child of this process cannot use the driver.
void allow_calls();

}  // namespace fake_cuda
