// Memory that NCCL allocates and knows: whose it is, when it is let go of, and what goes wrong.
#include <gmock/gmock.h>

#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class NcclMemory : public NcclTest {
 protected:
  void TearDown() override {
    unsetenv("DDP_NCCL_REGISTER");
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
  /// Groups that are made from now on.
  static void register_as(const char* word) { setenv("DDP_NCCL_REGISTER", word, 1); }
  static int known() { return FAKE_NCCL(fake_nccl_registrations)(); }
};

TEST_F(NcclMemory, IsZeroedKnownAndExchanged) {
  for (const auto& [word, pieces] : {std::pair{"local", 2}, std::pair{"window", 2}, std::pair{"off", 0}}) {
    register_as(word);
    DeviceGroup group(2, word);
    std::array<std::shared_ptr<void>, 2> memory;
    group.on_all([&](int rank) {
      auto& own = memory[static_cast<std::size_t>(rank)];
      own = group.at(rank).allocate(4096, soon());
      for (int i = 0; i < 4096; ++i) ASSERT_EQ(static_cast<const unsigned char*>(own.get())[i], 0);
      const float mine = static_cast<float>(rank) + 1;
      CUstream stream = group.own(rank).stream.get();
      const auto address = reinterpret_cast<CUdeviceptr>(own.get());
      cuda::check(cuda::driver().memcpy_async(address, reinterpret_cast<CUdeviceptr>(&mine), 4, stream), "copying");
      Operation sum;
      sum.kind = OperationKind::all_reduce;
      sum.count = 1;
      sum.input = sum.output = TensorView(own.get(), DType::float32, {1});
      sum.stream.handle = stream;
      ASSERT_EQ(run(group.at(rank), sum).outcome, Outcome::ok);
      EXPECT_EQ(*static_cast<const float*>(own.get()), 3.0F);
    });
    EXPECT_EQ(known(), pieces) << word;
    group.on_all([&](int rank) { memory[static_cast<std::size_t>(rank)].reset(); });
    EXPECT_EQ(known(), 0) << word;
  }
}

TEST_F(NcclMemory, MayOutliveItsGroup) {
  const auto live = FAKE_CUDA(fake_cuda_live);
  const FakeCudaLive before = live();
  std::shared_ptr<void> memory;
  {
    DeviceGroup group(1);
    group.on_all([&](int rank) { memory = group.at(rank).allocate(100, soon()); });
    EXPECT_EQ(known(), 1);
  }
  EXPECT_EQ(known(), 0) << "the communicator has gone";
  EXPECT_EQ(live().allocations, before.allocations + 1);
  memory.reset();
  EXPECT_EQ(live().allocations, before.allocations);
}

/// NCCL takes no other call while it launches.
TEST_F(NcclMemory, IsLetGoOfBetweenLaunches) {
  DeviceGroup group(2);
  std::array<std::shared_ptr<void>, 2> memory;
  group.on_all([&](int rank) { memory[static_cast<std::size_t>(rank)] = group.at(rank).allocate(64, soon()); });
  faults("AllReduce=launch_delay:60");
  group.on_all([&](int rank) {
    DeviceCall call = group.call(rank, all_reduce_of(50), 1);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    memory[static_cast<std::size_t>(rank)].reset();
    EXPECT_EQ(poll_until_end(request), Outcome::ok);
    request.release();
  });
  EXPECT_EQ(known(), 0);
}

std::optional<Error> allocation_error(Backend& backend, Deadline deadline) {
  try {
    backend.allocate(64, deadline);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

TEST_F(NcclMemory, AWindowThatARankDoesNotMakeEndsByTheDeadline) {
  register_as("window");
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  group.on_all([&](int rank) {
    if (rank == 1) return;
    const auto error = allocation_error(group.at(rank), Deadline::after(milliseconds(300)));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::timeout);
    EXPECT_THAT(error->what(), HasSubstr("in the same order"));
    group.at(rank).abort();
  });
}

TEST_F(NcclMemory, FailuresOfNcclAreTold) {
  DeviceGroup group(1);
  faults("MemAlloc=fail:ncclUnhandledCudaError");
  group.on_all([&](int rank) {
    EXPECT_TRUE(allocation_error(group.at(rank), soon()));
    group.run_call(rank, all_reduce_of(10), 1);  // too little memory is no end of the group
  });
  faults("CommRegister=fail:ncclSystemError");
  group.on_all([&](int rank) {
    const auto error = allocation_error(group.at(rank), soon());
    ASSERT_TRUE(error);
    EXPECT_EQ(error->native(), "ncclSystemError (2)");
    group.at(rank).abort();
  });
}

}  // namespace
}  // namespace ddp::collectives::testing
