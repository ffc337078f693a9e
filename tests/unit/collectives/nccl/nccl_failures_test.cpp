// How NcclBackend fails and ends: late errors, missing ranks, aborts that block, calls that hang.
#include "collectives/nccl/call_monitor.hpp"
#include "collectives/nccl/nccl_queue.hpp"
#include "collectives/nccl/rank_report.hpp"
#include "support/error_of.hpp"
#include "support/sanitized.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

class NcclFailures : public NcclTest {
 protected:
  /// An operation whose result no test reads.
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

/// NCCL gives up if it cannot end a kernel, which continues.
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

/// A group with this rank alone over NCCL.
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
    // NCCL's abort ends its own calls; nothing ends the driver's
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
  for (int i = 0; i < ::ddp::test::cases(1000); ++i) {
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

// Calls of CUDA's driver and of NCCL that fail or never return: how NcclBackend reports them, and what it leaves
// behind.

namespace {

class NcclErrors : public NcclTest {
 protected:
  void TearDown() override {
    FAKE_CUDA(fake_cuda_clear_faults)();
    NcclTest::TearDown();
  }
  /// Runs one operation, which @p native must end, and ends the group.
  static void run_failing(DeviceGroup& group, int rank, const Call& what, const char* native) {
    DeviceCall call = group.call(rank, what, 2);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::peers_failed) << native;
    EXPECT_EQ(request.failure().native, native) << request.failure().cause;
    EXPECT_NE(request.failure().cause, "");
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  }
};

/// The records mark the caller's earlier work, the operation's begin and its end.
TEST_F(NcclErrors, AnErrorOfTheDriverEndsTheOperationAndIsToldByName) {
  for (const char* fault : {"cuEventQuery=fail:719", "cuStreamWaitEvent=fail:719", "cuEventRecord#1=fail:719",
                            "cuEventRecord#2=fail:719", "cuEventRecord#3=fail:719"}) {
    SCOPED_TRACE(fault);
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      group.run_call(rank, all_reduce_of(10), 1);
      ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)(fault), 1);
      run_failing(group, rank, all_reduce_of(10), "CUDA_ERROR_LAUNCH_FAILED (719)");
      FAKE_CUDA(fake_cuda_clear_faults)();
    });
  }
}

/// An open group of NCCL's silently queues all later calls of the thread.
TEST_F(NcclErrors, ARefusedCallIsToldByNameAndTheThreadCanUseOtherGroups) {
  struct Refusal {
    const char* fault;
    bool connected;
    double prescale;
    const char* native;
  };
  for (const Refusal& refusal :
       {Refusal{"AllReduce#1=fail:ncclInvalidUsage", true, 1, "ncclInvalidUsage (5)"},
        Refusal{"RedOpCreatePreMulSum#1=fail:ncclInternalError", true, 0.5, "ncclInternalError (3)"},
        Refusal{"CommInitRankConfig#1=fail:ncclSystemError", false, 1, "ncclSystemError (2)"}}) {
    SCOPED_TRACE(refusal.fault);
    faults("");
    DeviceGroup group(2, "refused");
    DeviceGroup other(2, "other");
    if (refusal.connected) group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
    faults(refusal.fault);
    Call refused = all_reduce_of(10);
    refused.prescale = refusal.prescale;
    group.on_all([&](int rank) {
      run_failing(group, rank, refused, refusal.native);
      other.run_call(rank, refused, 1);
    });
  }
}

TEST_F(NcclErrors, ACloseWhoseCallsHangReturnsAndWarns) {
  for (const char* hangs : {"CommFinalize=hang,CommAbort=hang", "CommDestroy=hang"}) {
    SCOPED_TRACE(hangs);
    faults("");
    BackendRanks group(nccl_ranks(2), "closing");
    group.on_all([&](int rank) { ASSERT_EQ(run(group.at(rank), Operation{}).outcome, Outcome::ok); });
    faults(hangs);
    ::testing::internal::CaptureStderr();
    group.on_all([&](int rank) { group.at(rank).close(Deadline::after(milliseconds(300))); });
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("group 'closing': NCCL did not end its communicator in time"));
    for (int rank = 0; rank < group.size(); ++rank) group.kill(rank);
    FAKE_NCCL(fake_nccl_release)();
  }
}

/// NCCL prefers the environment to the program's configuration.
TEST_F(NcclErrors, WarnsWhereTheEnvironmentMakesNcclBlock) {
  for (const auto& [value, warnings] : {std::pair{"1", 1}, std::pair{"0", 0}}) {
    setenv("NCCL_COMM_BLOCKING", value, 1);
    ::testing::internal::CaptureStderr();
    { const BackendRanks group(nccl_ranks(2), "blocking"); }
    const std::string said = ::testing::internal::GetCapturedStderr();
    unsetenv("NCCL_COMM_BLOCKING");
    const std::string warning = "group 'blocking': NCCL_COMM_BLOCKING=1 makes NCCL block";
    const auto first = said.find(warning);
    EXPECT_EQ(first != std::string::npos, warnings == 1) << said;
    EXPECT_EQ(said.rfind(warning), first) << "by one rank only: " << said;
  }
}

}  // namespace

// Calls that do not return: which threads report them, and which wait for them.

namespace {

using nccl::BlockingCalls;

class BlockedCalls : public NcclTest {};

TEST_F(BlockedCalls, ACallIsToldOnceIfItIsSlow) {
  const auto slot = nccl::CallMonitor::watch("slow", "", milliseconds(80));
  ::testing::internal::CaptureStderr();
  const Deadline quick = Deadline::after(milliseconds(200));
  while (!quick.expired()) {
    const nccl::CallScope call(*slot, "in a quick call");
    std::this_thread::sleep_for(milliseconds(1));
  }
  {
    const nccl::CallScope call(*slot, "in a slow call");
    std::this_thread::sleep_for(milliseconds(1500));  // the monitor may just have begun to sleep for a second
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, Not(HasSubstr("quick")));
  const auto first = said.find("group 'slow': a thread has been in a slow call");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("slow call", first + 60), std::string::npos) << said;
}

TEST_F(BlockedCalls, BlockingCallsAreWaitedForWithCapturesLeftAlone) {
  std::atomic<bool> leave = false;
  std::atomic<bool> relaxed = false;
  ASSERT_TRUE(BlockingCalls::start([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuda::driver().thread_exchange_stream_capture_mode(&mode);
    relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    while (!leave) std::this_thread::yield();
  }));
  auto settled =
      std::async(std::launch::async, [] { return BlockingCalls::wait_for_all(Deadline::after(milliseconds(50))); });
  EXPECT_EQ(settled.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "it has a deadline";
  leave = true;
  EXPECT_FALSE(settled.get());
  EXPECT_TRUE(BlockingCalls::wait_for_all(soon()));
  EXPECT_TRUE(relaxed);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(BlockingCalls::start([] { throw std::runtime_error("of a test"); }));
  EXPECT_TRUE(BlockingCalls::wait_for_all(soon()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("a call that may wait for a device: of a test"));
}

/// Unloading a driver while a call runs crashes.
TEST_F(BlockedCalls, TheEndOfTheProcessWaitsForBlockingCalls) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends = [] {
    BlockingCalls::start([] {
      std::this_thread::sleep_for(milliseconds(300));
      static_cast<void>(!::write(STDERR_FILENO, "it is over", 10));
    });
    std::exit(0);
  };
  EXPECT_EXIT(ends(), ::testing::ExitedWithCode(0), "it is over");
}

}  // namespace

// Groups split off others by ncclCommSplit.

namespace {

class NcclSplit : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    setenv("DDP_NCCL_SPLIT", "1", 1);
  }
  void TearDown() override {
    unsetenv("DDP_NCCL_SPLIT");
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
  static std::unique_ptr<Backend> child_of_two(int rank, int device) {
    BackendConfig config;
    config.group = "some";
    config.rank = rank;
    config.size = 2;
    config.device = device;
    config.splits_off = true;
    return nccl::create(config);
  }
  static Operation barrier() { return {}; }
};

/// Of three ranks, the last and the first, in that order.
TEST_F(NcclSplit, GivesSomeRanksAGroupThatLivesByItself) {
  DeviceGroup parent(3);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  ASSERT_TRUE(parent.at(0).traits().splits);
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 2), child_of_two(1, 0)};
  const std::vector<Bytes> addresses{children[0]->address(), children[1]->address()};
  parent.on_all([&](int rank) {
    Backend* const child = rank == 1 ? nullptr : children[rank == 2 ? 0 : 1].get();
    const int place = rank == 2 ? 0 : 1;
    parent.at(rank).split(child, place, soon());
    if (child != nullptr) {
      child->connect(addresses, soon());
      DeviceCall call(parent.own(rank).context, all_reduce_of(50), 2, place, 1);
      call.fill(parent.own(rank).stream.get());
      ASSERT_EQ(run(*child, call.operation()).outcome, Outcome::ok);
      call.check(parent.own(rank).stream.get());
    }
  });
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("CommSplit", -1), 3);
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("CommInitRankConfig", -1), 3) << "of the parent";
  // ending one does not end the other, either way
  for (const auto& child : children) child->abort();
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(20), 2); });
  for (const auto& child : children) child->close(soon());
}

TEST_F(NcclSplit, TheParentsAbortLeavesTheChild) {
  DeviceGroup parent(2);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  const std::vector<Bytes> addresses{children[0]->address(), children[1]->address()};
  parent.on_all([&](int rank) {
    Backend& child = *children[static_cast<std::size_t>(rank)];
    parent.at(rank).split(&child, rank, soon());
    child.connect(addresses, soon());
    ASSERT_EQ(run(child, barrier()).outcome, Outcome::ok);
    parent.at(rank).abort();
    parent.at(rank).close(soon());
    EXPECT_EQ(run(child, barrier()).outcome, Outcome::ok);
    child.close(soon());
  });
}

TEST_F(NcclSplit, ARankThatDoesNotComeEndsItByTheDeadline) {
  DeviceGroup parent(3);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  parent.on_all([&](int rank) {
    if (rank == 2) return;
    const Error error = ddp::test::thrown_by([&] {
      parent.at(rank).split(children[static_cast<std::size_t>(rank)].get(), rank, Deadline::after(milliseconds(300)));
    });
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    children[static_cast<std::size_t>(rank)]->abort();
    parent.at(rank).abort();
  });
  for (const auto& child : children) child->close(soon());
}

TEST_F(NcclSplit, FailuresOfNcclAreTold) {
  DeviceGroup parent(2);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  faults("CommSplit=fail:ncclSystemError");
  parent.on_all([&](int rank) {
    const Error error = ddp::test::thrown_by(
        [&] { parent.at(rank).split(children[static_cast<std::size_t>(rank)].get(), rank, soon()); });
    EXPECT_EQ(error.native(), "ncclSystemError (2)");
    children[static_cast<std::size_t>(rank)]->abort();
    parent.at(rank).abort();
  });
  for (const auto& child : children) child->close(soon());
}

}  // namespace

}  // namespace ddp::collectives::testing
