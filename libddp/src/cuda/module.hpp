// A module: device code that was loaded into a context.
#pragma once

#include "cuda/context.hpp"

namespace ddp::cuda {

/// Owns a module. Move-only.
class Module {
 public:
  /// @p image: a fat binary, which the driver takes the code for its device from. Throws Error.
  Module(ContextPtr context, const void* image);
  Module(Module&& other) noexcept;
  Module& operator=(Module&& other) noexcept;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  /// The kernel of this name; valid as long as the module. Throws Error.
  CUfunction function(const char* name) const;

 private:
  ContextPtr context_;
  CUmodule module_ = nullptr;
};

}  // namespace ddp::cuda
