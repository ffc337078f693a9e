// The double's memory: poison, copies in the stream's order, calls that wait for the device, and pointers' attributes.
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
namespace {

struct FakeMemory : CudaTest {
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(api.mem_alloc(&address, bytes), CUDA_SUCCESS);
    return address;
  }
  static CUdeviceptr of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
};

TEST_F(FakeMemory, FreshAndFreedBytesArePoison) {
  const CUdeviceptr address = allocate(4 * sizeof(float));
  EXPECT_EQ(address % 256, 0u);
  EXPECT_TRUE(std::isnan(*reinterpret_cast<const float*>(address)));
  std::memset(reinterpret_cast<void*>(address), 0, 4 * sizeof(float));
  EXPECT_EQ(fake_cuda_touch(reinterpret_cast<void*>(address), 4 * sizeof(float)), 1);
  EXPECT_EQ(fake_cuda_touch(reinterpret_cast<void*>(address + 1), 4 * sizeof(float)), 0);
  EXPECT_EQ(api.mem_free(address), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_touch(reinterpret_cast<void*>(address), 1), 0);
#ifndef DDP_ADDRESS_SANITIZER  // which reports this very read
  EXPECT_TRUE(std::isnan(*reinterpret_cast<const float*>(address)));
#endif
  EXPECT_EQ(api.mem_free(address), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr next = 0;
  EXPECT_EQ(api.mem_alloc(&next, 0), CUDA_ERROR_INVALID_VALUE);
  next = allocate(4 * sizeof(float));
  EXPECT_NE(next, address);  // not given out again soon
  EXPECT_EQ(api.mem_free(next), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_alloc(&next, std::size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(FakeMemory, ThePoolIsUsedAgainAndCounted) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  ASSERT_EQ(api.mem_get_info(&before, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 64u << 20);
  for (int i = 0; i < 20; ++i) {  // more than there is
    const CUdeviceptr address = allocate(20 << 20);
    ASSERT_EQ(api.mem_get_info(&after, &total), CUDA_SUCCESS);
    EXPECT_LE(after, before - (20 << 20));
    ASSERT_EQ(api.mem_free(address), CUDA_SUCCESS);
  }
  std::array<CUdeviceptr, 3> parts{allocate(15 << 20), allocate(15 << 20), allocate(15 << 20)};
  for (const CUdeviceptr part : parts) EXPECT_EQ(api.mem_free(part), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_free(allocate(60 << 20)), CUDA_SUCCESS);  // neighbours become one again
  ASSERT_EQ(api.mem_get_info(&after, &total), CUDA_SUCCESS);
  EXPECT_EQ(after, before);
}

TEST_F(FakeMemory, CopiesHappenInTheStreamsOrder) {
  Gate gate;
  const CUstream queue = stream();
  const CUdeviceptr device = allocate(sizeof(int));
  const CUdeviceptr second = allocate(sizeof(int));
  void* pinned = nullptr;
  ASSERT_EQ(api.mem_host_alloc(&pinned, sizeof(int), 0), CUDA_SUCCESS);
  int pageable = 1;
  *static_cast<int*>(pinned) = 1;
  enqueue(queue, gate.pass());
  EXPECT_EQ(api.memcpy_async(device, of(&pageable), sizeof(int), queue), CUDA_SUCCESS);
  EXPECT_EQ(api.memcpy_async(second, of(pinned), sizeof(int), queue), CUDA_SUCCESS);
  pageable = 2;                    // it was staged at the call
  *static_cast<int*>(pinned) = 2;  // it is read when the copy runs
  std::atomic<bool> done = false;
  int result = 0;
  const long calls = fake_cuda_call_count("cuMemcpyAsync");
  std::thread reader([&] {
    const ContextScope scope(*context);
    // To pageable memory: returns when it is there.
    EXPECT_EQ(api.memcpy_async(of(&result), device, sizeof(int), queue), CUDA_SUCCESS);
    done = true;
  });
  until([&] { return fake_cuda_call_count("cuMemcpyAsync") == calls + 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_FALSE(done);
  gate.open();
  reader.join();
  EXPECT_EQ(result, 1);
  EXPECT_EQ(api.memcpy_async(of(pinned), second, sizeof(int), queue), CUDA_SUCCESS);
  EXPECT_EQ(api.memset_d8_async(device, 7, sizeof(int), queue), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_EQ(*static_cast<int*>(pinned), 2);
  EXPECT_EQ(*reinterpret_cast<int*>(device), 0x07070707);
  EXPECT_EQ(api.memcpy_async(device + 1, second, sizeof(int), queue), CUDA_ERROR_INVALID_VALUE);  // runs over the end
  EXPECT_EQ(api.memset_d8_async(device, 0, sizeof(int) + 1, queue), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.mem_free_host(pinned), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_free_host(pinned), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.mem_free(device), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_free(second), CUDA_SUCCESS);
}

TEST_F(FakeMemory, FreeingInOrder) {
  Gate gate;
  const CUstream queue = stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(api.mem_alloc_async(&address, 64, queue), CUDA_SUCCESS);
  enqueue(queue, gate.pass());
  EXPECT_EQ(api.mem_free_async(address, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_free_async(address, queue), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(fake_cuda_touch(reinterpret_cast<void*>(address), 64), 1);
  gate.open();
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_touch(reinterpret_cast<void*>(address), 64), 0);
}

TEST_F(FakeMemory, AllocatingAndFreeingWaitForTheDevice) {
  const CUdeviceptr memory = allocate(64);
  std::array<char, 64> host{};
  struct Case {
    const char* name;
    std::function<CUresult()> call;
  };
  CUdeviceptr made = 0;
  void* pinned = nullptr;
  const std::vector<Case> cases{
      {"cuMemAlloc", [&] { return api.mem_alloc(&made, 64); }},
      {"cuMemFree", [&] { return api.mem_free(made); }},
      {"cuMemHostAlloc", [&] { return api.mem_host_alloc(&pinned, 64, 0); }},
      {"cuMemFreeHost", [&] { return api.mem_free_host(pinned); }},
      {"cuMemHostRegister", [&] { return api.mem_host_register(host.data(), host.size(), 0); }},
      {"cuMemHostUnregister", [&] { return api.mem_host_unregister(host.data()); }},
      {"cuCtxSynchronize", [&] { return api.ctx_synchronize(); }},
  };
  for (const Case& each : cases) {
    Gate gate;
    const CUstream queue = stream();
    enqueue(queue, gate.pass());
    const long calls = fake_cuda_call_count(each.name);
    std::atomic<bool> done = false;
    std::thread caller([&] {
      const ContextScope scope(*context);
      EXPECT_EQ(each.call(), CUDA_SUCCESS) << each.name;
      done = true;
    });
    until([&] { return fake_cuda_call_count(each.name) > calls; });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(done) << each.name;
    gate.open();
    caller.join();
  }
  EXPECT_EQ(api.mem_free(memory), CUDA_SUCCESS);
}

TEST_F(FakeMemory, PointersTellWhatTheyAre) {
  const CUdeviceptr memory = allocate(1000);
  std::array<char, 256> host{};
  ASSERT_EQ(api.mem_host_register(host.data(), host.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_host_register(host.data() + 8, 8, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  unsigned type = 0;
  int device = -1;
  EXPECT_EQ(api.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 999), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(api.pointer_get_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(api.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, of(host.data())), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(api.mem_host_unregister(host.data()), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_host_unregister(host.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  // One asks for others' pointers in the plural form, which is no error.
  EXPECT_EQ(api.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, of(host.data())),
            CUDA_ERROR_INVALID_VALUE);
  CUcontext owner = nullptr;
  std::array attributes{CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  std::array<void*, 2> values{&owner, &type};
  EXPECT_EQ(api.pointer_get_attributes(2, attributes.data(), values.data(), memory), CUDA_SUCCESS);
  EXPECT_EQ(owner, context->get());
  EXPECT_EQ(api.pointer_get_attributes(2, attributes.data(), values.data(), of(host.data())), CUDA_SUCCESS);
  EXPECT_EQ(owner, nullptr);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(api.mem_free(memory), CUDA_SUCCESS);
}

/// What is freed under a copy that is still to run: the device faults.
struct FakeUseAfterFree : CudaTest {
  FakeUseAfterFree() : CudaTest(kFirstDeviceToFail + 1) {}
};

TEST_F(FakeUseAfterFree, FailsTheContext) {
  Gate gate;
  const CUstream queue = stream();
  const CUstream other = stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(api.mem_alloc_async(&address, 64, other), CUDA_SUCCESS);
  enqueue(queue, gate.pass());
  EXPECT_EQ(api.memset_d8_async(address, 0, 64, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.mem_free_async(address, other), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(other), CUDA_SUCCESS);
  gate.open();
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace ddp::cuda
