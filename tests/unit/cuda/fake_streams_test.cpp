// The double's streams and events do as CUDA's documentation says; the sources are named in tests/support/fake_cuda.
#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
namespace {

struct FakeStreams : CudaTest {
  Log log;
  auto noting(int entry) {
    return [this, entry] { log.add(entry); };
  }
};

TEST_F(FakeStreams, AStreamIsAQueueThatRunsBehindTheCaller) {
  Gate gate;
  const CUstream first = stream();
  const CUstream second = stream();
  ASSERT_EQ(enqueue(first, gate.pass()), CUDA_SUCCESS);
  enqueue(first, noting(1));
  EXPECT_EQ(api.launch_host_func(
                first, [](void* all) { static_cast<Log*>(all)->add(2); }, &log),
            CUDA_SUCCESS);
  enqueue(first, noting(3));
  EXPECT_EQ(api.stream_query(first), CUDA_ERROR_NOT_READY);
  enqueue(second, noting(0));  // independent
  EXPECT_EQ(api.stream_synchronize(second), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{0}));
  gate.open();
  EXPECT_EQ(api.stream_synchronize(first), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_query(first), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{0, 1, 2, 3}));
}

TEST_F(FakeStreams, AnEventStandsForWhatWasInTheStreamAtTheRecord) {
  Gate before;
  Gate after;
  const CUstream busy = stream();
  const CUstream idle = stream();
  const CUevent mark = event();
  EXPECT_EQ(api.event_query(mark), CUDA_SUCCESS);  // never recorded
  EXPECT_EQ(api.event_synchronize(mark), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(idle, mark, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(idle), CUDA_SUCCESS);

  enqueue(busy, before.pass());
  ASSERT_EQ(api.event_record(mark, busy), CUDA_SUCCESS);
  enqueue(busy, after.pass());
  EXPECT_EQ(api.event_query(mark), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(api.stream_wait_event(idle, mark, 0), CUDA_SUCCESS);
  enqueue(idle, noting(1));
  // A later record does not change what was waited for, but what a query means.
  const CUstream third = stream();
  ASSERT_EQ(api.event_record(mark, third), CUDA_SUCCESS);
  EXPECT_EQ(api.event_synchronize(mark), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_query(idle), CUDA_ERROR_NOT_READY);
  EXPECT_TRUE(log.entries().empty());
  before.open();
  EXPECT_EQ(api.stream_synchronize(idle), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_query(busy), CUDA_ERROR_NOT_READY);
  after.open();
}

TEST_F(FakeStreams, TheLegacyStreamWaitsForBlockingOnesAndTheyForIt) {
  Gate gate;
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUstream other = stream(CU_STREAM_DEFAULT);
  const CUstream exempt = stream();
  enqueue(blocking, gate.pass());
  ASSERT_EQ(enqueue(nullptr, noting(1)), CUDA_SUCCESS);
  enqueue(other, noting(2));
  enqueue(exempt, noting(0));
  EXPECT_EQ(api.stream_synchronize(exempt), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{0}));
  EXPECT_EQ(api.stream_query(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(api.stream_query(other), CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // for what would run too early
  log.add(9);
  gate.open();
  EXPECT_EQ(api.stream_synchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{0, 9, 1, 2}));
}

TEST_F(FakeStreams, ADeviceRunsAFewKernelsAtOnceUrgentOnesFirst) {
  int least = 0;
  int greatest = 0;
  EXPECT_EQ(api.ctx_get_stream_priority_range(&least, &greatest), CUDA_SUCCESS);
  EXPECT_LT(greatest, least);
  int clamped = 0;
  const CUstream urgent = stream(CU_STREAM_NON_BLOCKING, greatest - 100);
  EXPECT_EQ(api.stream_get_priority(urgent, &clamped), CUDA_SUCCESS);
  EXPECT_EQ(clamped, greatest);
  Gate first;
  Gate second;
  std::atomic<int> running = 0;
  for (Gate* gate : {&first, &second}) {
    enqueue(stream(), [pass = gate->pass(), &running] {
      ++running;
      pass();
    });
  }
  until([&] { return running == 2; });
  const CUstream patient = stream();
  enqueue(patient, noting(2));
  enqueue(urgent, noting(1));
  until([] { return fake_cuda_live().waiting_kernels == 2; });
  EXPECT_TRUE(log.entries().empty());
  first.open();
  EXPECT_EQ(api.stream_synchronize(patient), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{1, 2}));
  second.open();
}

TEST_F(FakeStreams, HostFunctionsMayNotCallCuda) {
  struct Call {
    const Driver& api;
    CUevent event;
    CUresult result = CUDA_SUCCESS;
  } call{api, event()};
  const CUstream queue = stream();
  ASSERT_EQ(api.launch_host_func(
                queue,
                [](void* all) {
                  static_cast<Call*>(all)->result =
                      static_cast<Call*>(all)->api.event_query(static_cast<Call*>(all)->event);
                },
                &call),
            CUDA_SUCCESS);
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);
  EXPECT_EQ(call.result, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(FakeStreams, DestroyedStreamsFinishAndAreNoHandlesAnyMore) {
  Gate gate;
  CUstream queue = nullptr;
  ASSERT_EQ(api.stream_create_with_priority(&queue, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  CUevent mark = nullptr;
  ASSERT_EQ(api.event_create(&mark, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const CUstream after = stream();
  enqueue(queue, gate.pass());
  enqueue(queue, noting(1));
  EXPECT_EQ(api.event_record(mark, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(after, mark, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_destroy(queue), CUDA_SUCCESS);  // at once
  EXPECT_EQ(api.event_destroy(mark), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_query(queue), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api.stream_destroy(queue), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(api.event_query(mark), CUDA_ERROR_INVALID_HANDLE);
  gate.open();
  EXPECT_EQ(api.stream_synchronize(after), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{1}));
}

TEST_F(FakeStreams, OtherDevicesStreamsAndNoContext) {
  const ContextPtr other = PrimaryContext::retain(1);
  const CUstream here = stream();
  const CUevent mark = event();
  {
    const ContextScope scope(*other);
    EXPECT_EQ(enqueue(here, [] {}), CUDA_ERROR_INVALID_HANDLE);  // launches need the stream's own device
    const CUstream there = stream();
    EXPECT_EQ(api.event_record(mark, there), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(api.event_record(mark, here), CUDA_SUCCESS);
    EXPECT_EQ(api.stream_wait_event(there, mark, 0), CUDA_SUCCESS);  // across devices
    EXPECT_EQ(api.event_synchronize(mark), CUDA_SUCCESS);
    EXPECT_EQ(api.stream_synchronize(there), CUDA_SUCCESS);
  }
  std::thread([&] {
    EXPECT_EQ(api.event_query(mark), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(api.stream_query(here), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
}

TEST_F(FakeStreams, ElapsedTime) {
  const CUstream queue = stream();
  const CUevent start = event(CU_EVENT_DEFAULT);
  const CUevent end = event(CU_EVENT_DEFAULT);
  float milliseconds = -1;
  EXPECT_EQ(api.event_elapsed_time(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  Gate gate;
  api.event_record(start, queue);
  enqueue(queue, [pass = gate.pass()] {
    pass();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  api.event_record(end, queue);
  EXPECT_EQ(api.event_elapsed_time(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  gate.open();
  EXPECT_EQ(api.event_synchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(api.event_elapsed_time(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 2);
  EXPECT_EQ(api.event_elapsed_time(&milliseconds, start, event()), CUDA_ERROR_INVALID_HANDLE);  // without timing
}

/// A context that failed stays so, runs nothing more, and fails all calls; other devices go on.
struct FakeFailedContext : CudaTest {
  FakeFailedContext() : CudaTest(kFirstDeviceToFail) {}
};

TEST_F(FakeFailedContext, ErrorsStick) {
  const CUstream queue = stream();
  const CUstream stuck = stream();
  const CUevent mark = event();
  Gate gate;
  Gate fault;
  auto destroyed = std::make_shared<int>();
  bool ran = false;
  enqueue(stuck, gate.pass());
  enqueue(stuck, [&ran, destroyed] { ran = true; });
  CUdeviceptr memory = 0;
  ASSERT_EQ(api.mem_alloc_async(&memory, 64, queue), CUDA_SUCCESS);
  enqueue(queue, fault.pass());
  enqueue(queue, [memory] { fake_cuda_touch(reinterpret_cast<void*>(memory + 1), 64); });
  EXPECT_EQ(api.event_record(mark, queue), CUDA_SUCCESS);
  fault.open();
  EXPECT_EQ(api.stream_synchronize(queue), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(api.event_query(mark), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(api.stream_synchronize(stuck), CUDA_ERROR_ILLEGAL_ADDRESS);  // though a kernel of it still runs
  EXPECT_EQ(api.mem_alloc(&memory, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(enqueue(queue, [] {}), CUDA_ERROR_ILLEGAL_ADDRESS);
  gate.open();
  until([&] { return destroyed.use_count() == 1; });  // dropped
  EXPECT_FALSE(ran);
  const ContextPtr other = PrimaryContext::retain(0);
  const ContextScope scope(*other);
  EXPECT_EQ(api.ctx_synchronize(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ddp::cuda
