// How gradients are moved on a device: what is copied, refused, kept, and in which order. With a Reducer, and with
// jitter: tests/multiproc/nccl_rank_reducer.cpp.
#include "collectives/nccl/device_executor.hpp"

#include <ddp/wait_watch.hpp>

#include "collectives/nccl/call_monitor.hpp"
#include "kernels/device/device_image.hpp"
#include "kernels/executor.hpp"
#include "unit/collectives/nccl/device_group.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives::testing {
namespace {

class DeviceExecutorTest : public NcclTest {
 protected:
  static void SetUpTestSuite() {
    NcclTest::SetUpTestSuite();
    std::vector<FakeCudaKernel> all;
    for (const kernels::KernelEntry& entry : kernels::kernel_table()) {
      all.push_back({.name = entry.name, .run = entry.run, .bytes = entry.argument_bytes});
    }
    FAKE_CUDA(fake_cuda_register_kernels)(all.data(), all.size());
  }
  CUstream stream() const { return static_cast<CUstream>(executor_->stream()->handle); }
  void settle() const { cuda::check(cuda::driver().stream_synchronize(stream()), "waiting for the executor"); }
  /// The double's devices have the host's memory.
  float* floats(std::initializer_list<float> values) {
    memory_.push_back(cuda::DeviceMemory(own_.context, values.size() * sizeof(float)));
    std::ranges::copy(values, static_cast<float*>(memory_.back().pointer()));
    return static_cast<float*>(memory_.back().pointer());
  }
  static std::string cause_of(const std::function<void()>& call) {
    const auto error = test::error_of(call);
    return error ? error->cause() : "no error";
  }

  DeviceRank own_{0};
  const cuda::ContextScope scope_{*own_.context};
  std::vector<cuda::DeviceMemory> memory_;
  std::shared_ptr<TensorExecutor> executor_ = nccl::make_device_executor(0, "group", false, soon());
};

TEST_F(DeviceExecutorTest, CopiesBytesAndZerosAlsoWithoutKernels) {
  float* const from = floats({1, 2, 3, 4});
  float* const to = floats({5, 6, 7, 8});
  const std::array copies{
      TensorCopy{.from = from, .to = to, .count = 2}, TensorCopy{.from = nullptr, .to = to + 2, .count = 1},
      TensorCopy{.from = to + 3, .to = to + 3, .count = 1}, TensorCopy{.from = from, .to = nullptr, .count = 0}};
  executor_->copy(copies, DType::float32, DType::float32);
  settle();
  EXPECT_THAT((std::vector<float>(to, to + 4)), ElementsAre(1, 2, 0, 8));
  if (!kernels::device_image().empty()) return;  // which it has then
  EXPECT_THAT(cause_of([&] { executor_->copy(copies, DType::float32, DType::float16); }), HasSubstr("to copy only"));
  EXPECT_THAT(cause_of([&] { executor_->copy(copies, DType::float32, DType::float32, 2); }), HasSubstr("to copy only"));
}

TEST_F(DeviceExecutorTest, MovesAndClearsManyTensorsByOneLaunchEach) {
  if (kernels::device_image().empty()) GTEST_SKIP() << "this build has no device code";
  float* const values = floats({1, 2, 3, 4, 5, 6, 7, 8});
  std::vector<TensorCopy> copies;
  for (std::size_t i = 0; i < 4; ++i) {
    copies.push_back({.from = i % 2 == 0 ? values + i + 4 : nullptr, .to = values + i, .count = 1});
  }
  const long launches = FAKE_CUDA(fake_cuda_call_count)("cuLaunchKernel");
  const long others =
      FAKE_CUDA(fake_cuda_call_count)("cuMemcpyAsync") + FAKE_CUDA(fake_cuda_call_count)("cuMemsetD8Async");
  executor_->copy(copies, DType::float32, DType::float32);
  settle();
  EXPECT_THAT((std::vector<float>(values, values + 4)), ElementsAre(5, 0, 7, 0));
  EXPECT_EQ(FAKE_CUDA(fake_cuda_call_count)("cuLaunchKernel"), launches + 2);
  EXPECT_EQ(FAKE_CUDA(fake_cuda_call_count)("cuMemcpyAsync") + FAKE_CUDA(fake_cuda_call_count)("cuMemsetD8Async"),
            others);
}

TEST_F(DeviceExecutorTest, DividesAndCastsByKernels) {
  if (kernels::device_image().empty()) {
    EXPECT_THAT(cause_of([] { nccl::make_device_executor(0, "group", true, soon()); }), HasSubstr("no device code"));
    GTEST_SKIP() << "this build has no device code";
  }
  executor_ = nccl::make_device_executor(0, "group", true, soon());
  float* const values = floats({9, 12, 15, 18});
  const TensorCopy three{.from = values, .to = floats({0, 0, 0, 0}), .count = 4};
  executor_->copy({&three, 1}, DType::float32, DType::float32, 3);
  const TensorCopy complex{.from = values, .to = values, .count = 2};  // in place
  executor_->copy({&complex, 1}, DType::complex64, DType::complex64, 3);
  settle();
  const auto* const thirds = static_cast<const float*>(three.to);
  EXPECT_THAT((std::vector<float>(thirds, thirds + 4)), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT((std::vector<float>(values, values + 4)), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(cause_of([&] {
                executor_->copy({&three, 1}, DType::int32, DType::int32, 3);
              }),
              HasSubstr("no kernel does that"));
}

/// Each of two streams waits for what was in the other at the call, and not for more.
TEST_F(DeviceExecutorTest, OrdersItsStreamAmongOthers) {
  float* const value = floats({1, 0});
  const std::array copies{TensorCopy{.from = value, .to = value + 1, .count = 1}};
  const Stream other{.device = executor_->stream()->device, .handle = own_.stream.get()};
  ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(own_.stream.get()), CUDA_SUCCESS);
  const float two = 2;
  cuda::check(cuda::driver().memcpy_async(reinterpret_cast<CUdeviceptr>(value), reinterpret_cast<CUdeviceptr>(&two),
                                          sizeof(float), own_.stream.get()),
              "writing");
  executor_->wait_for(executor_->now_in(other));
  executor_->copy(copies, DType::float32, DType::float32);
  ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(own_.stream.get()), CUDA_SUCCESS);
  ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(stream()), CUDA_SUCCESS);
  executor_->hold_back(other);
  EXPECT_EQ(cuda::driver().stream_query(own_.stream.get()), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(stream()), CUDA_SUCCESS);
  cuda::check(cuda::driver().stream_synchronize(own_.stream.get()), "waiting for the other stream");
  EXPECT_EQ(value[1], 2);
}

TEST_F(DeviceExecutorTest, ReadsAndWritesTheCpusMemoryInTime) {
  float* const value = floats({1, 2});
  ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(stream()), CUDA_SUCCESS);
  auto three = std::make_shared<Bytes>(sizeof(float));
  *reinterpret_cast<float*>(three->data()) = 3;
  executor_->write(three, value, soon());
  const std::weak_ptr<Bytes> kept = three;
  three.reset();
  EXPECT_FALSE(kept.expired());
  EXPECT_EQ(*value, 1);
  const Error error = test::error_of([&] {
                        executor_->read(value, sizeof(float), Deadline::after(std::chrono::milliseconds(30)));
                      }).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("reading gradients from CUDA device 0"));
  {
    const WaitWatch watch([] { throw std::runtime_error("a signal"); });
    EXPECT_THROW(executor_->read(value, sizeof(float), soon()), std::runtime_error);
  }
  ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(stream()), CUDA_SUCCESS);
  const Bytes read = executor_->read(value, 2 * sizeof(float), soon());
  EXPECT_THAT((std::vector<float>(reinterpret_cast<const float*>(read.data()),
                                  reinterpret_cast<const float*>(read.data()) + 2)),
              ElementsAre(3, 2));
  EXPECT_TRUE(executor_->read(nullptr, 0, soon()).empty());
  EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
  EXPECT_TRUE(kept.expired());
}

TEST_F(DeviceExecutorTest, KeepsMemoryUntilItsStreamIsPast) {
  ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(stream()), CUDA_SUCCESS);
  float* const value = floats({1});
  const TensorCopy zero{.from = nullptr, .to = value, .count = 1};
  executor_->copy({&zero, 1}, DType::float32, DType::float32);
  auto memory = std::make_shared<const int>(1);
  const std::weak_ptr<const int> kept = memory;
  executor_->keep(std::move(memory));
  EXPECT_FALSE(nccl::BlockingCalls::wait_for_all(Deadline::after(std::chrono::milliseconds(50))));
  EXPECT_FALSE(kept.expired());
  ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(stream()), CUDA_SUCCESS);
  EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
  EXPECT_TRUE(kept.expired());
  executor_->keep(std::make_shared<const int>(2));  // another thread, since the first has ended
  EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
}

}  // namespace
}  // namespace ddp::collectives::testing
