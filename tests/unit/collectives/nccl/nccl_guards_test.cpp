// What keeps NcclBackend from hanging, from using freed objects, and from calling NCCL at the wrong time: each guard by
// itself. tests/mutants/nccl.toml removes them one by one.
#include "collectives/nccl/communicator.hpp"
#include "collectives/nccl/nccl_queue.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using nccl::Communicator;

class NcclGuards : public NcclTest {
 protected:
  void TearDown() override {
    FAKE_CUDA(fake_cuda_clear_faults)();
    NcclTest::TearDown();
  }
  static int calls(const char* function) { return FAKE_NCCL(fake_nccl_calls)(function, -1); }
  static long driver_calls(const char* function) { return FAKE_CUDA(fake_cuda_call_count)(function); }
  /// Whether @p body, which can hang, returned; if not, @p release frees it.
  static bool comes_back(const std::function<void()>& body, const std::function<void()>& release) {
    const auto done = std::async(std::launch::async, body);
    const bool back = done.wait_for(seconds(20)) == std::future_status::ready;
    if (!back) release();
    return back;
  }
  /// The way a rank's group discards an operation.
  static void abort_and_release(Backend& backend, Request& request) {
    backend.abort();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  }
};

/// A communicator of this rank alone, without a group.
class Alone {
 public:
  Alone() : own_(0), scope_(*own_.context), communicator_(library_, own_.context, "alone", seconds(1)) {}
  Communicator* operator->() { return &communicator_; }
  nccl::ncclResult_t begin() {
    nccl::ncclUniqueId id{};
    EXPECT_EQ(library_->get_unique_id(&id), nccl::ncclSuccess);
    return communicator_.begin({id}, 1, 0);
  }
  void connect() {
    begin();
    for (const Deadline limit = soon(); communicator_.state() == nccl::ncclInProgress && !limit.expired();)
      std::this_thread::yield();
    ASSERT_EQ(communicator_.state(), nccl::ncclSuccess);
  }

 private:
  const nccl::NcclLibrary& library_ = nccl::NcclLibrary::process();
  DeviceRank own_;
  cuda::ContextScope scope_;
  Communicator communicator_;
};

TEST_F(NcclGuards, NcclKnowsCommunicatorsByTheirGroups) {
  DeviceGroup group(2, "layer 3's experts");
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  EXPECT_THAT(FAKE_NCCL(fake_nccl_comm_names)(), HasSubstr("layer 3's experts\nlayer 3's experts\n"));
}

TEST_F(NcclGuards, NothingBeginsAfterTheAbort) {
  Alone alone;
  const int before = FAKE_NCCL(fake_nccl_live_comms)();
  alone->abort();
  EXPECT_EQ(alone.begin(), nccl::ncclInvalidUsage);
  const auto called = alone->try_with([](nccl::ncclComm_t) { return nccl::ncclSuccess; });
  EXPECT_EQ(called, nccl::ncclInvalidUsage);
  EXPECT_EQ(FAKE_NCCL(fake_nccl_live_comms)(), before);
}

/// By the driving thread, and by a thread that ends the group at the same time; the thread sanitizer checks.
TEST_F(NcclGuards, WhatBeginsWhileItIsAbortedDoesNotStay) {
  const int before = FAKE_NCCL(fake_nccl_live_comms)();
  for (int times = 0; times < 20; ++times) {
    Alone alone;
    std::thread other([&] { alone->abort(); });
    alone.begin();
    other.join();
    for (const Deadline limit = soon(); !alone->over() && !limit.expired();) std::this_thread::yield();
    EXPECT_TRUE(alone->over());
  }
  EXPECT_EQ(FAKE_NCCL(fake_nccl_live_comms)(), before);
}

TEST_F(NcclGuards, ACommunicatorThatIsLeftIsAborted) {
  const int before = FAKE_NCCL(fake_nccl_live_comms)();
  {
    Alone alone;
    alone.connect();
  }
  for (const Deadline limit = soon(); FAKE_NCCL(fake_nccl_live_comms)() > before && !limit.expired();)
    std::this_thread::yield();
  EXPECT_EQ(FAKE_NCCL(fake_nccl_live_comms)(), before);
}

TEST_F(NcclGuards, AnInitThatIsRefusedAtOnceIsTold) {
  const nccl::NcclLibrary& library = nccl::NcclLibrary::process();
  nccl::ncclUniqueId id{};
  ASSERT_EQ(library->get_unique_id(&id), nccl::ncclSuccess);
  nccl::NcclQueue queue(library, 0, "impossible");
  queue.connect({id}, 1, 3);
  const Operation barrier;
  nccl::NcclRequest& request = queue.init({&barrier, 1}, soon());
  request.post();
  EXPECT_EQ(request.poll(), Outcome::peers_failed);
  EXPECT_EQ(request.failure().native, "ncclInvalidArgument (4)");
  queue.abort();
  EXPECT_EQ(poll_until_end(request), Outcome::aborted);
  request.release();
}

TEST_F(NcclGuards, WhoAsksForTheStateWaitsForNoCallOfAnotherThread) {
  Alone alone;
  alone.connect();
  std::promise<void> within;
  std::promise<void> leave;
  std::thread other([&] {
    alone->try_with([&](nccl::ncclComm_t) {
      within.set_value();
      leave.get_future().wait();
      return nccl::ncclSuccess;
    });
  });
  within.get_future().wait();
  EXPECT_TRUE(comes_back([&] { EXPECT_EQ(alone->state(), nccl::ncclInProgress); }, [&] { leave.set_value(); }));
  leave.set_value();
  other.join();
  EXPECT_EQ(alone->state(), nccl::ncclSuccess);
  alone->finish(soon());
}

TEST_F(NcclGuards, AStateThatNcclDoesNotTellIsAnError) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("CommGetAsyncError=fail:ncclInternalError");
    const Operation barrier;
    Request& request = group.at(rank).init({&barrier, 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::peers_failed);
    EXPECT_EQ(request.failure().native, "ncclInternalError (3)");
    EXPECT_EQ(request.failure().cause, "a fault that a test ordered") << "NCCL's last error";
    faults("");
    abort_and_release(group.at(rank), request);
  });
}

/// The second, or a close, would find nothing to end and report that all is over.
TEST_F(NcclGuards, OnlyTheFirstEndCounts) {
  for (const bool close : {false, true}) {
    Alone alone;
    alone.connect();
    faults("CommAbort=hang");
    alone->abort();
    for (const Deadline limit = soon(); calls("CommAbort") == 0 && !limit.expired();) std::this_thread::yield();
    close ? alone->finish(Deadline::after(milliseconds(200))) : alone->abort();
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_FALSE(alone->over()) << "NCCL is in the first still";
    FAKE_NCCL(fake_nccl_release)();
    for (const Deadline limit = soon(); !alone->over() && !limit.expired();) std::this_thread::yield();
    EXPECT_EQ(calls("CommAbort"), 1);
    EXPECT_EQ(calls("CommDestroy"), 0);
    faults("");
  }
}

TEST_F(NcclGuards, ACloseFinalizesAndWaitsForTheEnd) {
  Alone alone;
  alone.connect();
  faults("CommDestroy=delay:300");
  alone->finish(soon());
  EXPECT_EQ(calls("CommFinalize"), 1);
  EXPECT_EQ(calls("CommDestroy"), 1);
  EXPECT_EQ(calls("CommAbort"), 0);
  EXPECT_TRUE(alone->over());
}

/// An open group makes NCCL queue all later calls of the thread.
TEST_F(NcclGuards, AGroupOfCallsIsEndedHoweverItIsLeft) {
  const nccl::NcclLibrary& library = nccl::NcclLibrary::process();
  { const nccl::NcclGroup left(library); }
  EXPECT_EQ(library->group_end(), nccl::ncclInvalidUsage) << "there is none";
  FAKE_NCCL(fake_nccl_complaints)();
  nccl::NcclGroup group(library);
  group.note(nccl::ncclInProgress);
  EXPECT_FALSE(group.failed()) << "it goes on";
  group.note(nccl::ncclSystemError);
  group.note(nccl::ncclInternalError);
  group.note(nccl::ncclSuccess);
  EXPECT_EQ(group.end(), nccl::ncclSystemError) << "the first counts";
}

TEST_F(NcclGuards, BehindARefusedCallNoneIsMade) {
  for (const bool of_reduction : {false, true}) {
    faults("");
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      group.run_call(rank, all_reduce_of(10), 1);
      faults(of_reduction ? "RedOpCreatePreMulSum=fail:ncclInternalError" : "AllReduce=fail:ncclInvalidUsage");
      const cuda::DeviceMemory memory(group.own(rank).context, 4);
      std::array<Operation, 2> both;
      for (Operation& each : both) {
        each.kind = OperationKind::all_reduce;
        each.count = 1;
        each.input = each.output = TensorView(memory.pointer(), DType::float32, {1});
      }
      both[of_reduction ? 0 : 1].prescale = 0.5;  // which needs a preceding call
      Request& request = group.at(rank).init(both, soon());
      request.post();
      EXPECT_EQ(poll_until_end(request), Outcome::peers_failed);
      EXPECT_EQ(calls("AllReduce"), of_reduction ? 0 : 1);
      EXPECT_EQ(calls("RedOpCreatePreMulSum"), of_reduction ? 1 : 0);
      abort_and_release(group.at(rank), request);
    });
  }
}

TEST_F(NcclGuards, TheFirstCauseCounts) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("AllReduce=fail:ncclSystemError");
    DeviceCall call = group.call(rank, all_reduce_of(10), 2);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::peers_failed);
    group.at(rank).abort();
    ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)("cuEventRecord=fail:719"), 1);
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    EXPECT_EQ(request.failure().native, "ncclSystemError (2)");
    FAKE_CUDA(fake_cuda_clear_faults)();
    request.release();
  });
}

/// The second is in the stream, too, and the first's end is no longer visible.
TEST_F(NcclGuards, AFailureEndsWhatIsBehindItInTheStream) {
  faults("AllReduce#2=kernel_delay:50");
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    DeviceCall one = group.call(rank, all_reduce_of(10), 2);
    DeviceCall other = group.call(rank, all_reduce_of(10), 3);
    Request& first = group.at(rank).init({&one.operation(), 1}, soon());
    Request& second = group.at(rank).init({&other.operation(), 1}, soon());
    first.post();
    second.post();
    const Stream stream{.device = {.type = DeviceType::cuda, .index = rank}, .handle = group.own(rank).stream.get()};
    order_once_launched(second, stream);
    ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)("cuEventQuery=fail:719"), 1);
    EXPECT_EQ(poll_until_end(first), Outcome::peers_failed);
    EXPECT_EQ(second.poll(), Outcome::peers_failed);
    FAKE_CUDA(fake_cuda_clear_faults)();
    group.at(rank).abort();
    for (Request* request : {&first, &second}) {
      EXPECT_EQ(poll_until_end(*request), Outcome::aborted);
      request->release();
    }
  });
}

TEST_F(NcclGuards, WhatIsPostedAfterAnAbortCallsNothing) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    group.at(rank).abort();
    const long records = driver_calls("cuEventRecord");
    const Operation barrier;
    Request& request = group.at(rank).init({&barrier, 1}, soon());
    request.post();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    EXPECT_EQ(driver_calls("cuEventRecord"), records);
    request.release();
  });
}

/// It may have reached its stream by then, and an aborted NCCL does not report that.
TEST_F(NcclGuards, WhatNcclWasLaunchingIsWaitedForAfterAnAbort) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("AllReduce=launch_delay:50,AllReduce=kernel_stuck,CommAbort=fail:ncclUnhandledCudaError");
    DeviceCall call = group.call(rank, all_reduce_of(10), 2);
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    for (const Deadline limit = soon(); FAKE_NCCL(fake_nccl_running)() == 0 && !limit.expired();)
      std::this_thread::yield();
    group.at(rank).abort();
    EXPECT_EQ(poll_until_end(request, Deadline::after(milliseconds(500))), Outcome::running);
    FAKE_NCCL(fake_nccl_release)();
    EXPECT_EQ(poll_until_end(request), Outcome::aborted);
    request.release();
  });
}

TEST_F(NcclGuards, ALaunchThatHangsHoldsNobody) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("AllReduce=launch_hang");
    DeviceCall call = group.call(rank, all_reduce_of(10), 2);
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    EXPECT_TRUE(comes_back([&] { request.post(); }, [&] { group.at(rank).abort(); }));
    EXPECT_EQ(request.poll(), Outcome::running);
    abort_and_release(group.at(rank), request);
  });
}

TEST_F(NcclGuards, ACaptureWhoseLaunchHangsEndsByItsDeadline) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    faults("AllReduce=launch_hang");
    CUstream stream = group.own(rank).stream.get();
    DeviceCall call = group.call(rank, all_reduce_of(10), 2);
    call.operation().stream.handle = stream;
    cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "capturing");
    Request& request = group.at(rank).init({&call.operation(), 1}, Deadline::after(milliseconds(300)));
    EXPECT_TRUE(comes_back([&] { request.post(); }, [&] { group.at(rank).abort(); }));
    EXPECT_EQ(request.poll(), Outcome::peers_failed);
    abort_and_release(group.at(rank), request);
    CUgraph graph = nullptr;
    cuda::driver().stream_end_capture(stream, &graph);
    if (graph != nullptr) cuda::driver().graph_destroy(graph);
  });
}

/// By the next operation, or by close().
TEST_F(NcclGuards, WhatAGraphKeptIsLetGoOf) {
  for (const bool by_close : {false, true}) {
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      group.run_call(rank, all_reduce_of(10), 1);
      CUstream stream = group.own(rank).stream.get();
      auto owner = std::make_shared<int>(1);
      Operation barrier;
      barrier.stream.handle = stream;
      barrier.keep_alive = owner;
      const std::weak_ptr<int> kept = owner;
      owner.reset();
      cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
      Request& request = group.at(rank).init({&barrier, 1}, soon());
      request.post();
      request.release();
      CUgraph graph = nullptr;
      cuda::check(cuda::driver().stream_end_capture(stream, &graph), "capturing");
      barrier.keep_alive.reset();
      cuda::driver().graph_destroy(graph);
      std::this_thread::sleep_for(milliseconds(50));  // the driver's own thread
      EXPECT_FALSE(kept.expired()) << "it may not call CUDA, which owners of device memory do";
      by_close ? group.at(rank).close(soon()) : group.run_call(rank, all_reduce_of(10), 2);
      EXPECT_TRUE(kept.expired()) << by_close;
    });
  }
}

TEST_F(NcclGuards, EventsAreTakenAgain) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    const long made = driver_calls("cuEventCreate");
    for (std::uint64_t sequence = 2; sequence < 10; ++sequence) group.run_call(rank, all_reduce_of(10), sequence);
    EXPECT_EQ(driver_calls("cuEventCreate"), made);
  });
}

}  // namespace
}  // namespace ddp::collectives::testing
