#include "cuda/module.hpp"

#include <utility>

#include <fmt/format.h>

#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::cuda {

Module::Module(ContextPtr context, const void* image) : context_(std::move(context)) {
  const ContextScope scope(*context_);
  check(driver().module_load_data(&module_, image),
        fmt::format("loading device code onto CUDA device {}", context_->device()));
}

Module::Module(Module&& other) noexcept
    : context_(std::move(other.context_)), module_(std::exchange(other.module_, nullptr)) {}

Module& Module::operator=(Module&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(module_, other.module_);
  return *this;
}

Module::~Module() {
  if (module_ != nullptr)
    destroy_in(
        *context_, [this] { return driver().module_unload(module_); }, "unloading device code");
}

CUfunction Module::function(const char* name) const {
  const ContextScope scope(*context_);
  CUfunction function = nullptr;
  check(driver().module_get_function(&function, module_, name), fmt::format("looking up the kernel {}", name));
  return function;
}

}  // namespace ddp::cuda
