#include "cuda/context.hpp"

#include <fmt/format.h>

#include "cuda/driver.hpp"

namespace ddp::cuda {
namespace {

/// False if it failed, or if there was nothing to do.
bool push(const PrimaryContext& context, CUresult& code) noexcept {
  CUcontext current = nullptr;
  code = driver().ctx_get_current(&current);
  if (code != CUDA_SUCCESS || current == context.get()) return false;
  code = driver().ctx_push_current(context.get());
  return code == CUDA_SUCCESS;
}

}  // namespace

ContextPtr PrimaryContext::retain(int device) {
  CUdevice handle{};
  check(driver().device_get(&handle, device), fmt::format("using CUDA device {}", device));
  CUcontext context = nullptr;
  check(driver().device_primary_ctx_retain(&context, handle),
        fmt::format("retaining the primary context of CUDA device {}", device));
  return ContextPtr(new PrimaryContext(device, handle, context));
}

PrimaryContext::~PrimaryContext() {
  log_failure(driver().device_primary_ctx_release(handle_), "releasing a primary context");
}

ContextScope::ContextScope(const PrimaryContext& context) {
  CUresult code = CUDA_SUCCESS;
  pushed_ = push(context, code);
  check(code, "making a CUDA context current");
}

ContextScope::ContextScope(const PrimaryContext& context, CUresult& code) noexcept : pushed_(push(context, code)) {}

ContextScope::~ContextScope() {
  CUcontext popped = nullptr;
  if (pushed_) log_failure(driver().ctx_pop_current(&popped), "restoring the current CUDA context");
}

}  // namespace ddp::cuda
