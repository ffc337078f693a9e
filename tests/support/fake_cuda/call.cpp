#include "tests/support/fake_cuda/call.hpp"

#include <pthread.h>

#include "tests/support/fake_cuda/faults.hpp"

namespace fake_cuda {
namespace {

std::atomic<CallSite*> first_site = nullptr;
std::atomic<bool> allowed = false;
thread_local int host_functions = 0;

}  // namespace

CallSite::CallSite(std::string_view function) : function_(function), next_(first_site.load()) {
  while (!first_site.compare_exchange_weak(next_, this)) {
  }
}

CUresult CallSite::enter() {
  ++calls_;
  if (const auto fault = faults().meet(function_, current_rank())) return *fault;
  if (host_functions > 0) return CUDA_ERROR_NOT_PERMITTED;
  // "Any function returns CUDA_ERROR_NOT_INITIALIZED if cuInit() has not been called" (driver API, Initialization).
  return allowed ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

HostFunctionScope::HostFunctionScope() { ++host_functions; }
HostFunctionScope::~HostFunctionScope() { --host_functions; }

void allow_calls() {
  // A forked child sees CUDA_ERROR_NOT_INITIALIZED, cuInit included (Programming Guide, Multi-process: contexts do not
  // survive fork).
  static const int once = pthread_atfork(nullptr, nullptr, [] { allowed = false; });
  static_cast<void>(once);
  allowed = true;
}

}  // namespace fake_cuda

extern "C" long fake_cuda_call_count(const char* function) {
  long calls = 0;
  for (auto* site = fake_cuda::first_site.load(); site != nullptr; site = site->next_) {
    if (site->function_ == function) calls += site->calls_;
  }
  return calls;
}
