#include "kernels/device/device_image.hpp"

#ifdef DDP_DEVICE_IMAGE
// The file lies in the library as it is: as an array of numbers, it would take compilers seconds.
asm(R"(
  .pushsection .rodata
  .balign 64
  .hidden ddp_device_image_begin
  .hidden ddp_device_image_end
  .globl ddp_device_image_begin
  .globl ddp_device_image_end
ddp_device_image_begin:
  .incbin ")" DDP_DEVICE_IMAGE R"("
ddp_device_image_end:
  .popsection
)");
extern "C" const std::byte ddp_device_image_begin[];
extern "C" const std::byte ddp_device_image_end[];
#endif

namespace ddp::kernels {

std::span<const std::byte> device_image() noexcept {
#ifdef DDP_DEVICE_IMAGE
  return {ddp_device_image_begin, ddp_device_image_end};
#else
  return {};
#endif
}

}  // namespace ddp::kernels
