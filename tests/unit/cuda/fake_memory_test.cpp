// The double's memory: poison, copies in the stream's order, calls that wait for the device, and pointers' attributes.
#include "cuda/context.hpp"
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
  EXPECT_NE(next, address);  // not reused soon
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
  EXPECT_EQ(api.mem_free(allocate(60 << 20)), CUDA_SUCCESS);  // neighbours merge again
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
  pageable = 2;                    // the call staged it
  *static_cast<int*>(pinned) = 2;  // the copy reads it when it runs
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
  // The plural form accepts other pointers without an error.
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

/// Memory freed before a queued copy runs: the device faults.
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

// The double's controls: faults, pauses, counts; its kernels; distinguishable devices; forks.

namespace {

struct FakeFaults : CudaTest {
  ~FakeFaults() override { fake_cuda_clear_faults(); }
};

TEST_F(FakeFaults, RulesByFunctionRankAndCall) {
  const CUevent mark = event();
  const auto query = [&] { return api.event_query(mark); };
  for (const char* wrong :
       {"cuEventQuery", "=fail:2", "cuEventQuery#0=fail:2", "cuEventQuery=fail", "cuEventQuery=halt",
        "cuEventQuery@x=hang", "cuEventQuery=hang:1", "cuEventQuery=fail:2;x"}) {
    EXPECT_EQ(fake_cuda_add_faults(wrong), 0) << wrong;
  }
  EXPECT_EQ(query(), CUDA_SUCCESS);
  const long calls = fake_cuda_call_count("cuEventQuery");
  ASSERT_EQ(fake_cuda_add_faults("cuEventQuery#2=fail:719;cuEventQuery@5#1+=fail:999"), 1);
  EXPECT_EQ(query(), CUDA_SUCCESS);
  EXPECT_EQ(query(), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(query(), CUDA_SUCCESS);
  fake_cuda_set_rank(5);
  EXPECT_EQ(query(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(query(), CUDA_ERROR_UNKNOWN);
  fake_cuda_set_rank(-1);
  fake_cuda_clear_faults();
  EXPECT_EQ(query(), CUDA_SUCCESS);
  EXPECT_EQ(fake_cuda_call_count("cuEventQuery"), calls + 6);
  ASSERT_EQ(fake_cuda_add_faults("cuEventQuery=delay:20"), 1);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(query(), CUDA_SUCCESS);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
}

TEST_F(FakeFaults, HangingCallsAndWork) {
  const CUevent mark = event();
  const CUstream queue = stream();
  ASSERT_EQ(fake_cuda_add_faults("cuEventSynchronize=hang;run:enqueued#1=hang"), 1);
  std::atomic<bool> done = false;
  const long calls = fake_cuda_call_count("cuEventSynchronize");
  std::thread caller([&] {
    const ContextScope scope(*context);
    EXPECT_EQ(api.event_synchronize(mark), CUDA_SUCCESS);
    done = true;
  });
  bool ran = false;
  enqueue(queue, [&] { ran = true; });
  until([&] { return fake_cuda_call_count("cuEventSynchronize") > calls; });
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_FALSE(done);
  EXPECT_EQ(api.stream_query(queue), CUDA_ERROR_NOT_READY);  // other calls continue
  fake_cuda_clear_faults();
  caller.join();
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_TRUE(ran);
}

TEST_F(FakeFaults, PausedStreams) {
  const CUstream queue = stream();
  bool ran = false;
  ASSERT_EQ(fake_cuda_pause_stream(queue), CUDA_SUCCESS);
  enqueue(queue, [&] { ran = true; });
  EXPECT_EQ(api.stream_query(queue), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(fake_cuda_resume_stream(queue), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_TRUE(ran);
}

using FakeFaultsDeathTest = FakeFaults;

TEST_F(FakeFaultsDeathTest, Kill) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        fake_cuda_add_faults("cuCtxSynchronize#2=kill");
        api.ctx_synchronize();
        api.ctx_synchronize();
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FakeFaultsDeathTest, AForkedChildHasNoDriver) {
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(
      _exit(api.init(0) == CUDA_ERROR_NOT_INITIALIZED && api.ctx_synchronize() == CUDA_ERROR_NOT_INITIALIZED ? 7 : 1),
      ::testing::ExitedWithCode(7), "");
}

struct FakeFailingWork : CudaTest {
  FakeFailingWork() : CudaTest(kFirstDeviceToFail + 2) {}
};

TEST_F(FakeFailingWork, FailsItsContext) {
  const CUstream queue = stream();
  bool ran = false;
  ASSERT_EQ(fake_cuda_add_faults("run:enqueued#2=fail:719"), 1);
  EXPECT_EQ(enqueue(queue, [] {}), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_EQ(enqueue(queue, [&] { ran = true; }), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(ran);
  fake_cuda_clear_faults();
  EXPECT_EQ(api.stream_query(queue), CUDA_ERROR_LAUNCH_FAILED);
}

struct Sum {
  const int* first;
  const int* second;
  int* result;
};
void run_sum(const void* argument) {
  const Sum& sum = *static_cast<const Sum*>(argument);
  *sum.result = *sum.first + *sum.second;
}

TEST_F(FakeFaults, KernelsRunInTheStreamWithTheirArgumentsOfTheCall) {
  const FakeCudaKernel kernel{.name = "test_sum", .run = run_sum, .bytes = sizeof(Sum)};
  fake_cuda_register_kernels(&kernel, 1);
  const std::array<unsigned char, 8> image{0x50, 0xed, 0x55, 0xba};
  const std::array<unsigned char, 8> text{'e', 'l', 'f'};
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(api.module_load_data(&module, text.data()), CUDA_ERROR_INVALID_IMAGE);
  ASSERT_EQ(api.module_load_data(&module, image.data()), CUDA_SUCCESS);
  EXPECT_EQ(api.module_get_function(&function, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(api.module_get_function(&function, module, "test_sum"), CUDA_SUCCESS);
  Gate gate;
  const CUstream queue = stream();
  int first = 1;
  int second = 2;
  int result = 0;
  Sum sum{&first, &second, &result};
  std::array<void*, 1> parameters{&sum};
  enqueue(queue, gate.pass());
  EXPECT_EQ(api.launch_kernel(function, 1, 1, 1, 1025, 1, 1, 0, queue, parameters.data(), nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api.launch_kernel(function, 0, 1, 1, 1, 1, 1, 0, queue, parameters.data(), nullptr),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api.launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, queue, parameters.data(), nullptr), CUDA_SUCCESS);
  sum = {};    // already copied
  first = 40;  // read when the kernel runs
  gate.open();
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_EQ(result, 42);
  EXPECT_EQ(api.module_unload(module), CUDA_SUCCESS);
  EXPECT_EQ(api.launch_kernel(function, 1, 1, 1, 32, 1, 1, 0, queue, parameters.data(), nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeFaults, DevicesCanBeToldApart) {
  ASSERT_EQ(device_count(), 8);
  std::set<std::string> uuids;
  std::set<std::string> addresses;
  for (int i = 0; i < 8; ++i) {
    const DeviceFacts facts = device_facts(i);
    EXPECT_EQ(facts.uuid.substr(0, 4), "GPU-");
    EXPECT_EQ(facts.uuid.size(), std::string("GPU-8f6c1a2b-0000-0000-0000-000000000000").size());
    EXPECT_EQ(facts.compute_major, 9);
    uuids.insert(facts.uuid);
    addresses.insert(facts.pci_bus_id);
  }
  EXPECT_EQ(uuids.size(), 8u);
  EXPECT_EQ(addresses.size(), 8u);
}

}  // namespace

}  // namespace ddp::cuda
