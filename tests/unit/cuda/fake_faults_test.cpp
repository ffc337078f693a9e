// The double's controls: faults, pauses, counts; its kernels; devices that processes can tell apart; forks.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <set>

#include "cuda/device.hpp"
#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
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
  EXPECT_EQ(api.stream_query(queue), CUDA_ERROR_NOT_READY);  // other calls go on
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
  sum = {};    // was copied
  first = 40;  // is read when the kernel runs
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
