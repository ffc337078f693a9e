#include "cuda_side.hpp"

#include <array>
#include <memory>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace fake_nccl {

Place current_place() {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return {};
  Place place{.context = context, .device = -1};
  CUuuid uuid{};
  if (cuCtxGetDevice(&place.device) != CUDA_SUCCESS || cuDeviceGetUuid_v2(&uuid, place.device) != CUDA_SUCCESS)
    return {};
  constexpr std::array kDigits{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
  for (const char byte : uuid.bytes) {
    place.uuid += kDigits.at(static_cast<unsigned char>(byte) >> 4U);
    place.uuid += kDigits.at(static_cast<unsigned char>(byte) & 15U);
  }
  return place;
}

PlaceScope::PlaceScope(void* context) { cuCtxPushCurrent(static_cast<CUcontext>(context)); }
PlaceScope::~PlaceScope() {
  CUcontext ignored = nullptr;
  cuCtxPopCurrent(&ignored);
}

bool enqueue(cudaStream_t stream, StreamWork work) {
  auto owned = std::make_unique<StreamWork>(std::move(work));
  const auto run = [](void* argument) { static_cast<StreamWork*>(argument)->run(); };
  const auto drop = [](void* argument) {
    const std::unique_ptr<StreamWork> last(static_cast<StreamWork*>(argument));
    last->end();
  };
  // From here on drop owns it.
  StreamWork* given = owned.get();
  if (fake_cuda_enqueue(stream, run, drop, given) != CUDA_SUCCESS) return false;
  owned.release();  // NOLINT(bugprone-unused-return-value)
  return true;
}

bool is_capturing(cudaStream_t stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool touch(const void* memory, std::size_t bytes) { return bytes == 0 || fake_cuda_touch(memory, bytes) != 0; }

bool allocate(void** memory, std::size_t bytes) {
  CUdeviceptr address = 0;
  if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS) return false;
  *memory = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return true;
}

bool release(void* memory) { return cuMemFree_v2(reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS; }

}  // namespace fake_nccl
