// Memory that NCCL allocates and registers: its owner, its release, and its failures.
#include "collectives/nccl/call_monitor.hpp"
#include "support/error_of.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

class NcclMemory : public NcclTest {
 protected:
  void TearDown() override {
    unsetenv("DDP_NCCL_REGISTER");
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
  /// For groups made from now on.
  static void register_as(const char* word) { setenv("DDP_NCCL_REGISTER", word, 1); }
  static int known() { return FAKE_NCCL(fake_nccl_registrations)(); }
  /// After released memory has been freed.
  static int known_at_last() {
    EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
    return known();
  }
  /// A float that no test reads.
  static Operation sum_in(const std::shared_ptr<void>& memory) {
    Operation sum;
    sum.kind = OperationKind::all_reduce;
    sum.count = 1;
    sum.input = sum.output = TensorView(memory.get(), DType::float32, {1});
    sum.keep_alive = memory;
    return sum;
  }
  /// Whether @p body, which can hang in the driver, returned; if not, @p release frees it.
  static bool comes_back(const std::function<void()>& body, const std::function<void()>& release) {
    const auto done = std::async(std::launch::async, body);
    const bool back = done.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    if (!back) release();
    return back;
  }
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
      Operation sum = sum_in(own);
      sum.stream.handle = stream;
      ASSERT_EQ(run(group.at(rank), sum).outcome, Outcome::ok);
      EXPECT_EQ(*static_cast<const float*>(own.get()), 3.0F);
    });
    EXPECT_EQ(known(), pieces) << word;
    group.on_all([&](int rank) { memory[static_cast<std::size_t>(rank)].reset(); });
    EXPECT_EQ(known_at_last(), 0) << word;
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
  EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
  EXPECT_EQ(live().allocations, before.allocations);
}

/// The double's driver waits for all work on the device when it allocates and frees.
TEST_F(NcclMemory, BehindAnOperationThatHangsHoldsNobody) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    Backend& backend = group.at(rank);
    CUstream stream = group.own(rank).stream.get();
    group.run_call(rank, all_reduce_of(10), 1);
    std::array<std::shared_ptr<void>, 3> memory;
    for (auto& each : memory) each = backend.allocate(64, soon());

    Operation captured = sum_in(memory[0]);
    captured.stream.handle = stream;
    cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    Request& into_graph = backend.init({&captured, 1}, soon());
    into_graph.post();
    into_graph.release();
    CUgraph graph = nullptr;
    cuda::check(cuda::driver().stream_end_capture(stream, &graph), "capturing");
    captured.keep_alive.reset();
    memory[0].reset();

    faults("AllReduce=kernel_hang");
    Operation hanging = sum_in(memory[1]);
    Request& request = backend.init({&hanging, 1}, soon());
    request.post();
    for (const Deadline limit = soon(); !request.started() && !limit.expired();) request.poll();  // NCCL's own thread
    EXPECT_TRUE(comes_back(
        [&] {
          const cuda::ContextScope scope(*group.own(rank).context);
          memory[2].reset();
          cuda::driver().graph_destroy(graph);  // the thread that polls operations releases its memory
          for (int i = 0; i < 100; ++i) EXPECT_EQ(request.poll(), Outcome::running);
          const Error error = ddp::test::thrown_by([&] { backend.allocate(64, Deadline::after(milliseconds(300))); });
          EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
        },
        [&] { backend.abort(); }));
    backend.abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
  EXPECT_EQ(known_at_last(), 0);
}

TEST_F(NcclMemory, DeregisteringThatBlocksHoldsNobody) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    auto memory = group.at(rank).allocate(64, soon());
    const auto other = group.at(rank).allocate(64, soon());
    group.run_call(rank, all_reduce_of(10), 1);
    faults("CommDeregister=hang");
    memory.reset();
    const Deadline limit = soon();
    while (FAKE_NCCL(fake_nccl_calls)("CommDeregister", -1) == 0 && !limit.expired()) std::this_thread::yield();
    const Operation sum = sum_in(other);
    Request& request = group.at(rank).init({&sum, 1}, soon());
    EXPECT_TRUE(comes_back(
        [&] {
          request.post();
          for (int i = 0; i < 100; ++i) EXPECT_EQ(request.poll(), Outcome::running) << "NCCL is busy";
        },
        [] {
          FAKE_NCCL(fake_nccl_release)
          ();
        }));
    faults("");
    FAKE_NCCL(fake_nccl_release)();
    EXPECT_EQ(poll_until_end(request), Outcome::ok);
    request.release();
  });
  EXPECT_EQ(known_at_last(), 0);
}

TEST_F(NcclMemory, IsNotFreedByForkedChildren) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    auto memory = group.at(rank).allocate(64, soon());
    const auto calls = [] {  // a freeing thread begins with the last of these
      return FAKE_NCCL(fake_nccl_calls)("CommDeregister", -1) + FAKE_NCCL(fake_nccl_calls)("MemFree", -1) +
             FAKE_CUDA(fake_cuda_call_count)("cuThreadExchangeStreamCaptureMode");
    };
    const auto before = calls();
    const pid_t child = ::fork();
    if (child == 0) {
      memory.reset();
      ::_exit(nccl::BlockingCalls::wait_for_all(soon()) && calls() == before ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "it called NCCL or CUDA";
    EXPECT_EQ(known(), 1);
  });
  EXPECT_EQ(known_at_last(), 0);
}

/// NCCL accepts no other call while it launches.
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
  EXPECT_EQ(known_at_last(), 0);
}

std::optional<Error> allocation_error(Backend& backend, Deadline deadline) {
  return ddp::test::error_of([&] { backend.allocate(64, deadline); });
}

TEST_F(NcclMemory, AWindowThatARankDoesNotMakeEndsByTheDeadline) {
  register_as("window");
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  group.on_all([&](int rank) {
    if (rank == 1) return;
    const Error error = allocation_error(group.at(rank), Deadline::after(milliseconds(300))).value();
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("in the same order"));
    const Operation barrier;
    Request& request = group.at(rank).init({&barrier, 1}, soon());
    request.post();
    EXPECT_EQ(request.poll(), Outcome::peers_failed) << "NCCL cannot be called back, and takes no other call";
    request.release();
    group.at(rank).abort();
  });
  EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("MemFree", -1), 0) << "NCCL may still make the window";
}

TEST_F(NcclMemory, IsFreedWhenTheAbortIsOver) {
  register_as("off");
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    auto memory = group.at(rank).allocate(64, soon());
    group.run_call(rank, all_reduce_of(10), 1);
    faults("CommAbort=hang");
    group.at(rank).abort();
    memory.reset();
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("MemFree", -1), 0) << "the device may still write to it";
    FAKE_NCCL(fake_nccl_release)();
    EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon()));
    EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("MemFree", -1), 1);
  });
}

TEST_F(NcclMemory, FailuresOfNcclAreTold) {
  DeviceGroup group(1);
  faults("MemAlloc=fail:ncclUnhandledCudaError");
  group.on_all([&](int rank) {
    EXPECT_TRUE(allocation_error(group.at(rank), soon()));
    group.run_call(rank, all_reduce_of(10), 1);  // too little memory does not end the group
  });
  faults("CommRegister=fail:ncclSystemError");
  group.on_all([&](int rank) {
    const Error error = allocation_error(group.at(rank), soon()).value();
    EXPECT_EQ(error.native(), "ncclSystemError (2)");
    group.at(rank).abort();
  });
}

TEST_F(NcclMemory, WhatIsBeingFreedIsWaitedForWhenMemoryIsShort) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    auto memory = group.at(rank).allocate(64, soon());
    faults("MemFree=delay:300,MemAlloc#1=fail:ncclUnhandledCudaError");
    memory.reset();
    EXPECT_FALSE(allocation_error(group.at(rank), soon()));
  });
  EXPECT_EQ(known_at_last(), 0);
}

/// NCCL hangs in a launch, or in another thread's call.
TEST_F(NcclMemory, AnAllocationWhileNcclHangsEndsByItsDeadline) {
  for (const bool in_launch : {true, false}) {
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      Backend& backend = group.at(rank);
      group.run_call(rank, all_reduce_of(10), 1);
      auto memory = backend.allocate(64, soon());
      faults(in_launch ? "AllReduce=launch_hang" : "CommDeregister=hang");
      const Operation barrier;
      Request& request = backend.init({&barrier, 1}, soon());
      if (in_launch) {
        request.post();
      } else {
        memory.reset();
        for (const Deadline limit = soon(); FAKE_NCCL(fake_nccl_calls)("CommDeregister", -1) == 0 && !limit.expired();)
          std::this_thread::yield();
      }
      EXPECT_TRUE(comes_back(
          [&] {
            const Error error = allocation_error(backend, Deadline::after(milliseconds(300))).value();
            EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
          },
          [&] { backend.abort(); }));
      backend.abort();
      const Outcome outcome = in_launch ? poll_until_end(request) : Outcome::aborted;
      EXPECT_EQ(outcome, Outcome::aborted);
      request.release();
      memory.reset();
      FAKE_NCCL(fake_nccl_release)();
    });
    EXPECT_EQ(known_at_last(), 0);
    faults("");
  }
}

/// NCCL accepts no call, or its abort does not end: each for longer than the limit.
TEST_F(NcclMemory, WhatNcclDoesNotLetGoOfIsKeptForEver) {
  DeviceGroup launching(1, "launching");
  DeviceGroup aborting(1, "aborting");
  Request* request = nullptr;
  const Operation barrier;
  aborting.on_all([&](int rank) {
    auto memory = aborting.at(rank).allocate(64, soon());
    faults("CommAbort=hang,AllReduce=launch_hang");
    aborting.at(rank).abort();
    memory.reset();
  });
  launching.on_all([&](int rank) {
    faults("");
    auto memory = launching.at(rank).allocate(64, soon());
    faults("AllReduce=launch_hang");
    request = &launching.at(rank).init({&barrier, 1}, soon());
    request->post();
    memory.reset();
  });
  EXPECT_TRUE(comes_back([] { EXPECT_TRUE(nccl::BlockingCalls::wait_for_all(soon())); },
                         [] {
                           FAKE_NCCL(fake_nccl_release)
                           ();
                         }));
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("MemFree", -1), 0) << "NCCL may still write to it";
  FAKE_NCCL(fake_nccl_release)();
  EXPECT_EQ(poll_until_end(*request), Outcome::ok);
  request->release();
}

TEST_F(NcclMemory, AGroupIsEndedWhoeverHoldsItsMemory) {
  std::shared_ptr<void> memory;
  auto group = std::make_unique<BackendRanks>(nccl_ranks(1), "held");
  group->on_all([&](int rank) { memory = group->at(rank).allocate(64, soon()); });
  EXPECT_EQ(known(), 1);
  group->kill(0);
  for (const Deadline limit = soon(); known() > 0 && !limit.expired();) std::this_thread::yield();
  EXPECT_EQ(known(), 0) << "the communicator has gone";
}

/// Freeing memory waits for the device.
TEST_F(NcclMemory, AGroupWhoseAbortHangsBehindTheDeviceIsLeftWithoutWaiting) {
  auto group = std::make_unique<BackendRanks>(nccl_ranks(1), "stuck");
  group->on_all([&](int rank) {
    const Operation barrier;
    ASSERT_EQ(run(group->at(rank), barrier).outcome, Outcome::ok);
    faults("AllReduce=kernel_stuck");
    Request& request = group->at(rank).init({&barrier, 1}, soon());
    request.post();
    for (const Deadline limit = soon(); !request.started() && !limit.expired();) static_cast<void>(request.poll());
  });
  EXPECT_TRUE(comes_back([&] { group->kill(0); }, [] { FAKE_NCCL(fake_nccl_release)(); }));
  FAKE_NCCL(fake_nccl_release)();
}

}  // namespace
}  // namespace ddp::collectives::testing
