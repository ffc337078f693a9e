// The double's captures and graphs.
#include "cuda/stream.hpp"
#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
namespace {

struct FakeCapture : CudaTest {
  Log log;
  auto noting(int entry) {
    return [this, entry] { log.add(entry); };
  }
  CUresult begin(CUstream queue, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return api.stream_begin_capture(queue, mode);
  }
  /// Ends a capture of which a graph is expected, and destroys that.
  CUresult end(CUstream queue) {
    CUgraph graph = nullptr;
    const CUresult code = api.stream_end_capture(queue, &graph);
    EXPECT_EQ(graph != nullptr, code == CUDA_SUCCESS);
    if (graph != nullptr) {
      EXPECT_EQ(api.graph_destroy(graph), CUDA_SUCCESS);
    }
    return code;
  }
};

TEST_F(FakeCapture, AGraphRunsAtEachLaunchAndNotBefore) {
  const CUstream queue = stream();
  const CUstream side = stream();
  const CUevent fork = event();
  const CUevent join = event();
  const CUevent outside = event();
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  enqueue(queue, noting(1));
  EXPECT_EQ(api.event_record(fork, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(side, fork, 0), CUDA_SUCCESS);
  EXPECT_TRUE(Stream::capture_state_of(side).capturing());  // it has joined the capture
  EXPECT_EQ(Stream::capture_state_of(side).id, Stream::capture_state_of(queue).id);
  enqueue(side, noting(2));
  EXPECT_EQ(api.event_record(join, side), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(queue, join, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.launch_host_func(
                queue, [](void* all) { static_cast<Log*>(all)->add(3); }, &log),
            CUDA_SUCCESS);
  EXPECT_EQ(api.event_record_with_flags(outside, queue, CU_EVENT_RECORD_EXTERNAL), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(api.stream_end_capture(queue, &graph), CUDA_SUCCESS);
  EXPECT_FALSE(Stream::capture_state_of(side).capturing());
  EXPECT_TRUE(log.entries().empty());
  CUgraphExec launched = nullptr;
  ASSERT_EQ(api.graph_instantiate(&launched, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_destroy(graph), CUDA_SUCCESS);  // what was made of it stays
  EXPECT_EQ(api.graph_launch(launched, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.event_synchronize(outside), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{1, 2, 3}));
  Gate gate;
  enqueue(queue, gate.pass());
  EXPECT_EQ(api.graph_launch(launched, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_launch(launched, side), CUDA_SUCCESS);  // after its launch in the other stream
  EXPECT_EQ(api.event_query(outside), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(api.stream_query(side), CUDA_ERROR_NOT_READY);
  gate.open();
  EXPECT_EQ(api.stream_synchronize(side), CUDA_SUCCESS);
  EXPECT_EQ(log.entries(), (std::vector{1, 2, 3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(api.graph_exec_destroy(launched), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_launch(launched, queue), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FakeCapture, ForbiddenCallsInvalidateTheCapture) {
  const CUstream queue = stream(CU_STREAM_DEFAULT);
  const CUstream other = stream();
  const CUevent inside = event();
  const CUevent before = event();
  api.event_record(before, other);
  CUdeviceptr memory = 0;
  struct Case {
    const char* what;
    std::function<CUresult()> call;
    CUresult code;
  };
  const auto unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const std::vector<Case> cases{
      {"query of the stream", [&] { return api.stream_query(queue); }, unsupported},
      {"synchronizing the stream", [&] { return api.stream_synchronize(queue); }, unsupported},
      {"synchronizing the context", [&] { return api.ctx_synchronize(); }, unsupported},
      {"query of another event", [&] { return api.event_query(before); }, unsupported},
      {"waiting for another event", [&] { return api.event_synchronize(before); }, unsupported},
      {"query of a captured event", [&] { return api.event_query(inside); }, CUDA_ERROR_CAPTURED_EVENT},
      {"allocating", [&] { return api.mem_alloc(&memory, 64); }, unsupported},
      {"the legacy stream", [&] { return enqueue(nullptr, [] {}); }, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT},
      {"work from outside", [&] { return api.stream_wait_event(queue, before, 0); },
       CUDA_ERROR_STREAM_CAPTURE_ISOLATION},
  };
  for (const Case& each : cases) {
    ASSERT_EQ(begin(queue), CUDA_SUCCESS);
    EXPECT_EQ(api.event_record(inside, queue), CUDA_SUCCESS);
    EXPECT_EQ(each.call(), each.code) << each.what;
    CUstreamCaptureStatus status{};
    EXPECT_EQ(api.stream_is_capturing(queue, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED) << each.what;
    EXPECT_EQ(enqueue(queue, [] {}), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << each.what;
    EXPECT_EQ(end(queue), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << each.what;
    EXPECT_EQ(api.stream_synchronize(queue), CUDA_SUCCESS);  // usable again
  }
  // What is allowed: waits for events of before by the external flag, and for ones that were never recorded.
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(queue, before, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_wait_event(queue, event(), 0), CUDA_SUCCESS);
  EXPECT_EQ(api.stream_is_capturing(nullptr, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);  // does not invalidate
  EXPECT_EQ(end(queue), CUDA_SUCCESS);
}

TEST_F(FakeCapture, ModesSayWhichThreadsMayCallWhat) {
  const CUstream queue = stream();
  const CUevent mark = event();
  struct Case {
    CUstreamCaptureMode capture;
    CUstreamCaptureMode thread;
    bool here;  ///< called by the thread that began the capture
    bool allowed;
  };
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
  constexpr auto kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  for (const Case& each :
       {Case{kGlobal, kGlobal, false, false}, Case{kGlobal, kLocal, false, true}, Case{kGlobal, kRelaxed, false, true},
        Case{kLocal, kGlobal, false, true}, Case{kLocal, kGlobal, true, false}, Case{kRelaxed, kGlobal, true, true},
        Case{kGlobal, kLocal, true, false}, Case{kGlobal, kRelaxed, true, true}}) {
    ASSERT_EQ(begin(queue, each.capture), CUDA_SUCCESS);
    const auto call = [&] {
      const ContextScope scope(*context);
      CUstreamCaptureMode mode = each.thread;
      api.thread_exchange_stream_capture_mode(&mode);
      EXPECT_EQ(api.event_query(mark), each.allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
          << each.capture << ' ' << each.thread << ' ' << each.here;
      api.thread_exchange_stream_capture_mode(&mode);
    };
    if (each.here) {
      call();
    } else {
      std::thread(call).join();
    }
    EXPECT_EQ(end(queue), each.allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  // The scope that watchdogs use.
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  std::thread([&] {
    const ContextScope scope(*context);
    const RelaxedCaptureScope relaxed;
    EXPECT_EQ(api.event_query(mark), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(end(queue), CUDA_SUCCESS);
}

TEST_F(FakeCapture, EndsThatAreWrong) {
  const CUstream queue = stream();
  const CUstream side = stream();
  const CUevent fork = event();
  EXPECT_EQ(begin(nullptr), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(queue), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  EXPECT_EQ(begin(queue), CUDA_ERROR_ILLEGAL_STATE);
  std::thread([&] {
    const ContextScope scope(*context);
    EXPECT_EQ(end(queue), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  }).join();
  api.event_record(fork, queue);
  api.stream_wait_event(side, fork, 0);
  EXPECT_EQ(end(side), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  enqueue(side, [] {});
  EXPECT_EQ(end(queue), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(api.stream_query(side), CUDA_SUCCESS);
  EXPECT_EQ(api.event_query(fork), CUDA_ERROR_CAPTURED_EVENT);
  // Two captures cannot become one.
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  ASSERT_EQ(begin(side), CUDA_SUCCESS);
  api.event_record(fork, queue);
  EXPECT_EQ(api.stream_wait_event(side, fork, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(end(queue), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end(side), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(FakeCapture, GraphsKeepUserObjectsAndWork) {
  const CUstream queue = stream();
  std::atomic<int> destroyed = 0;
  CUuserObject object = nullptr;
  const auto destroy = [](void* count) { ++*static_cast<std::atomic<int>*>(count); };
  EXPECT_EQ(api.user_object_create(&object, &destroyed, destroy, 1, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api.user_object_create(&object, &destroyed, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_SUCCESS);
  Gate gate;
  auto argument = std::make_shared<int>();
  ASSERT_EQ(begin(queue), CUDA_SUCCESS);
  enqueue(queue, [pass = gate.pass(), argument] { pass(); });
  const CaptureState state = Stream::capture_state_of(queue);
  ASSERT_EQ(api.graph_retain_user_object(state.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(api.stream_end_capture(queue, &graph), CUDA_SUCCESS);
  CUgraphExec launched = nullptr;
  ASSERT_EQ(api.graph_instantiate(&launched, graph, 0), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_launch(launched, queue), CUDA_SUCCESS);
  EXPECT_EQ(api.graph_exec_destroy(launched), CUDA_SUCCESS);  // goes when the launch is over
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(argument.use_count(), 2);
  gate.open();
  until([&] { return destroyed == 1 && argument.use_count() == 1; });
  EXPECT_EQ(fake_cuda_live().graphs, 0u);
  EXPECT_EQ(fake_cuda_live().user_objects, 0u);
}

}  // namespace
}  // namespace ddp::cuda
