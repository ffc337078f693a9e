// How NcclBackend fails and ends: errors that come later, ranks that are missing, aborts that block, calls that hang.
#include <gmock/gmock.h>

#include "collectives/nccl/nccl_queue.hpp"
#include "collectives/nccl/rank_report.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NcclFailures : public NcclTest {
 protected:
  /// Whose tensors nobody looks at.
  struct Idle {
    explicit Idle(const DeviceRank& rank) : memory(rank.context, 4) {
      operation.kind = OperationKind::all_reduce;
      operation.count = 1;
      operation.sequence = 1;
      operation.input = operation.output = TensorView(memory.pointer(), DType::float32, {1});
    }
    cuda::DeviceMemory memory;
    Operation operation;
  };
};

TEST_F(NcclFailures, AnAsynchronousErrorIsToldByNameAndTheRestIsAborted) {
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=kernel_hang,AllReduce=async:ncclSystemError:20");
  group.on_all([&](int rank) {
    Idle idle(group.own(rank));
    Request& request = group.at(rank).init({&idle.operation, 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::peers_failed);
    EXPECT_EQ(request.failure().native, "ncclSystemError (2)");
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
}

TEST_F(NcclFailures, ARankThatDoesNotComeHoldsNobodyWhoAborts) {
  DeviceGroup group(3);
  group.on_all([&](int rank) {
    if (rank == 2) return;
    Idle idle(group.own(rank));
    Request& request = group.at(rank).init({&idle.operation, 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request, Deadline::after(milliseconds(200))), Outcome::running);
    const Stream stream{.device = {.type = DeviceType::cuda, .index = rank}, .handle = group.own(rank).stream.get()};
    EXPECT_FALSE(request.order(stream)) << "it is in no stream yet";
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
  DeviceGroup survivors(2, "survivors");
  survivors.on_all([&](int rank) { survivors.run_call(rank, all_reduce_of(30), 1); });
}

TEST_F(NcclFailures, AnAbortedOperationEndsWhenTheDeviceLetsGoOfIt) {
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=kernel_hang");
  group.on_all([&](int rank) {
    Idle idle(group.own(rank));
    CUstream stream = group.own(rank).stream.get();
    idle.operation.stream.handle = stream;
    ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(stream), CUDA_SUCCESS);
    cuda::check(cuda::driver().memset_d8_async(idle.memory.get(), 0, 4, stream), "filling");
    Request& request = group.at(rank).init({&idle.operation, 1}, soon());
    request.post();
    const Stream same{.device = {.type = DeviceType::cuda, .index = rank}, .handle = stream};
    order_once_launched(request, same);
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request, Deadline::after(milliseconds(300))), Outcome::running)
        << "it is still behind the caller's work";
    ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(stream), CUDA_SUCCESS);
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
}

TEST_F(NcclFailures, AnAbortThatBlocksHoldsNobodyAndItsMemoryIsKept) {
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=kernel_hang,CommAbort=hang");
  std::array<std::weak_ptr<int>, 2> kept;
  ::testing::internal::CaptureStderr();
  group.on_all([&](int rank) {
    Idle idle(group.own(rank));
    auto owner = std::make_shared<int>(1);
    kept[static_cast<std::size_t>(rank)] = owner;
    idle.operation.keep_alive = std::move(owner);
    Request& request = group.at(rank).init({&idle.operation, 1}, soon());
    request.post();
    const auto before = Deadline::Clock::now();
    group.at(rank).abort();
    EXPECT_LT(Deadline::Clock::now() - before, seconds(1)) << "it must not block";
    EXPECT_EQ(poll_until_end(request, Deadline::after(seconds(1))), Outcome::running);
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
    idle.operation.keep_alive.reset();
    // the test's own memory, too
    static_cast<void>(new cuda::DeviceMemory(std::move(idle.memory)));
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("a thread has been in ncclCommAbort for "));
  for (const auto& each : kept) EXPECT_FALSE(each.expired()) << "the device may still write to it";
  FAKE_NCCL(fake_nccl_release)();
}

/// NCCL gives up where it cannot end a kernel, which goes on.
TEST_F(NcclFailures, AnAbortThatFailsEndsNothingThatTheDeviceStillDoes) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("AllReduce=kernel_stuck,CommAbort=fail:ncclUnhandledCudaError");
    Idle idle(group.own(rank));
    Request& request = group.at(rank).init({&idle.operation, 1}, soon());
    request.post();
    for (const Deadline limit = soon(); !request.started() && !limit.expired();) request.poll();
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request, Deadline::after(milliseconds(500))), Outcome::running);
    FAKE_NCCL(fake_nccl_release)();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
}

TEST_F(NcclFailures, ACallThatHangsIsTold) {
  DeviceGroup group(1);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=delay:2500");
  ::testing::internal::CaptureStderr();
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 2); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("group 'devices': a thread has been starting an operation for 1."),
                    HasSubstr("NCCL is aborted once the group has failed")));
}

/// A group of this rank alone over NCCL.
ProcessGroup alone_over_nccl(milliseconds timeout) {
  BackendConfig config;
  config.group = "alone";
  config.device = 0;
  auto backend = nccl::create(config);
  backend->connect({backend->address()}, soon());
  return ddp::test::group_over(std::move(backend), 1, timeout);
}

TEST_F(NcclFailures, CallsThatHangHoldNoOtherGroup) {
  DeviceRank own(0);
  const cuda::ContextScope scope(*own.context);
  const cuda::DeviceMemory memory(own.context, 4);
  const TensorView tensor(memory.pointer(), DType::float32, {1}, {.type = DeviceType::cuda, .index = 0});
  const auto hang_nccl = [] { faults("AllReduce=hang"); };
  const auto hang_driver = [] { ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)("cuEventQuery=hang"), 1); };
  for (const bool by_nccl : {true, false}) {
    ProcessGroup group = alone_over_nccl(milliseconds(600));
    group.all_reduce(tensor).wait(soon());
    by_nccl ? hang_nccl() : hang_driver();
    std::optional<Work> work;
    std::thread caller([&] { work = group.all_reduce(tensor); });
    const auto control = std::make_shared<ddp::test::BackendControl>();
    control->hold();
    ProcessGroup other = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control), 1, seconds(2));
    const Work waiting = other.barrier();
    for (const Deadline limit = soon(); !waiting.done() && !limit.expired();)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(waiting.error()) << "it has no deadline while another group's call hangs";
    // NCCL's abort ends its own calls, nothing ends the driver's
    if (!by_nccl) FAKE_CUDA(fake_cuda_clear_faults)();
    caller.join();
    ASSERT_TRUE(work);
    for (const Deadline limit = soon(); !work->done() && !limit.expired();)
      std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(work->done());
    ASSERT_EQ(work->error().has_value(), by_nccl) << "the device did what the driver was asked about";
    if (by_nccl) {
      EXPECT_EQ(work->error()->code(), ErrorCode::timeout) << work->error()->what();
    }
    faults("");
  }
}

TEST_F(NcclFailures, AThousandGroupsLeaveNothing) {
  const auto live = FAKE_CUDA(fake_cuda_live);
  {
    DeviceGroup warm(2);
    warm.on_all([&](int rank) { warm.run_call(rank, all_reduce_of(1), 1); });
  }
  const FakeCudaLive before = live();
  const int communicators = FAKE_NCCL(fake_nccl_live_comms)();  // one that NCCL could not abort
  for (int i = 0; i < 1000; ++i) {
    BackendRanks group(nccl_ranks(2), "group" + std::to_string(i));
    group.on_all([&](int rank) {
      Operation barrier;
      ASSERT_EQ(run(group.at(rank), barrier).outcome, Outcome::ok);
    });
  }
  EXPECT_EQ(FAKE_NCCL(fake_nccl_live_comms)(), communicators);
  const FakeCudaLive after = live();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.allocations, before.allocations);
}

TEST_F(NcclFailures, SeveralRootsMakeOneCommunicator) {
  const nccl::NcclLibrary& library = nccl::NcclLibrary::process();
  std::vector<nccl::ncclUniqueId> ids(2);
  for (nccl::ncclUniqueId& id : ids) ASSERT_EQ(library->get_unique_id(&id), nccl::ncclSuccess);
  std::array<std::unique_ptr<nccl::NcclQueue>, 3> queues;
  for (int rank = 0; rank < 3; ++rank) {
    queues[static_cast<std::size_t>(rank)] = std::make_unique<nccl::NcclQueue>(library, rank, "roots");
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      nccl::NcclQueue& queue = *queues[static_cast<std::size_t>(rank)];
      queue.connect(ids, 3, rank);
      Operation barrier;
      nccl::NcclRequest& request = queue.init({&barrier, 1}, soon());
      request.post();
      EXPECT_EQ(poll_until_end(request), Outcome::ok) << request.failure().native;
      request.release();
      queue.close(soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("CommInitRankScalable", -1), 3);
}

TEST(NcclRoots, OneFor128RanksWhereNcclTakesSeveral) {
  EXPECT_THAT(nccl::bootstrap_roots(128, true), ElementsAre(0));
  EXPECT_THAT(nccl::bootstrap_roots(129, true), ElementsAre(0, 128));
  EXPECT_THAT(nccl::bootstrap_roots(1000, false), ElementsAre(0));
}

TEST(NcclDevice, IsTheGivenOneOrThatOfThePlaceOnTheNode) {
  BackendConfig config;
  config.rank = 3;
  config.size = 4;
  config.nodes = {0, 1, 0, 1};
  EXPECT_EQ(nccl::choose_device(config, 1), 0) << "the launcher left this one";
  EXPECT_EQ(nccl::choose_device(config, 2), 1);
  config.device = 5;
  EXPECT_EQ(nccl::choose_device(config, 8), 5);
  config.device.reset();
  config.nodes = {};
  EXPECT_THROW(nccl::choose_device(config, 3), Error) << "4 ranks, 3 devices";
  EXPECT_THROW(nccl::choose_device(config, 0), Error);
}

}  // namespace
}  // namespace ddp::collectives::testing
