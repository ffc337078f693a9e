// The device code of the kernels: a fat binary, which libddp carries in itself, so that no file has to be found.
#pragma once

#include <cstddef>
#include <span>

namespace ddp::kernels {

/// Code for the devices of compute capability 8.x, 9.x and 10.x, and PTX for later ones. Empty where the build left it
/// out: no nvcc, or a sanitizer's build.
std::span<const std::byte> device_image() noexcept;

}  // namespace ddp::kernels
