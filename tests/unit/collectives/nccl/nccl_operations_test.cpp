// What NcclBackend computes, and how its operations relate to the caller's streams, over the doubles of CUDA and NCCL.
#include <barrier>

#include "collectives/nccl/registered_memory.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

constexpr std::array kKinds{OperationKind::all_reduce, OperationKind::broadcast,      OperationKind::reduce,
                            OperationKind::all_gather, OperationKind::all_gather_v,   OperationKind::gather,
                            OperationKind::scatter,    OperationKind::reduce_scatter, OperationKind::all_to_all,
                            OperationKind::barrier};

class NcclSizes : public NcclTest, public ::testing::WithParamInterface<int> {};
class NcclOperations : public NcclTest {};

/// One reduction of each kind and type is enough for the sizes from 4 to 7.
TEST_P(NcclSizes, EveryCollectiveTypeAndReduction) {
  const bool every_reduction = GetParam() < 4 || GetParam() == 8;
  FAKE_NCCL(fake_nccl_set_jitter)(static_cast<unsigned>(GetParam()));
  {
    DeviceGroup group(GetParam());
    group.on_all([&](int rank) {
      std::uint64_t sequence = 0;
      for (std::size_t type = 0; type < kTypes.size(); ++type) {
        for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
          for (std::size_t op = 0; op < (reduces(kKinds[kind]) ? kReductions.size() : 1); ++op) {
            if (!reducible(kTypes[type], kReductions[op])) continue;
            if (reduces(kKinds[kind]) && !every_reduction &&
                kReductions[op] != some_reduction(kTypes[type], kind + type)) {
              continue;
            }
            const std::size_t mixed = kind + type + op;
            const Call call{.kind = kKinds[kind],
                            .dtype = kTypes[type],
                            .op = kReductions[op],
                            .count = std::array<std::size_t, 4>{1, 0, 33, 1000}[mixed % 4],
                            .root = static_cast<int>(sequence) % GetParam(),
                            .in_place = mixed % 2 == 0,
                            .shift = 0,
                            .seed = sequence};
            group.run_call(rank, call, ++sequence);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    });
  }
  FAKE_NCCL(fake_nccl_set_jitter)(0);
  EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
}
INSTANTIATE_TEST_SUITE_P(From1To8, NcclSizes, ::testing::Range(1, 9));

TEST_F(NcclOperations, SumsAreScaledByNccl) {
  DeviceGroup group(4);
  group.on_all([&](int rank) {
    std::uint64_t sequence = 0;
    for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::float8_e4m3fn,
                              DType::float8_e5m2, DType::complex64}) {
      Call call = all_reduce_of(33);
      call.dtype = dtype;
      call.prescale = 0.5;
      group.run_call(rank, call, ++sequence);
    }
  });
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("RedOpCreatePreMulSum", -1), 4 * 7);
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("RedOpDestroy", -1), 4 * 7);
}

TEST_F(NcclOperations, SeveralStartAsOne) {
  DeviceGroup group(3);
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    std::vector<std::unique_ptr<DeviceCall>> calls;
    std::vector<Operation> operations;
    for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::all_gather, OperationKind::reduce}) {
      calls.push_back(std::make_unique<DeviceCall>(group.own(rank).context,
                                                   Call{.kind = kind, .count = 100, .root = 2, .seed = calls.size()}, 3,
                                                   rank, calls.size() + 1));
      calls.back()->fill(stream);
      operations.push_back(calls.back()->operation());
    }
    ASSERT_EQ(run(group.at(rank), operations).outcome, Outcome::ok);
    for (const auto& call : calls) call->check(stream);

    // a ring of transfers, with receives before sends
    cuda::DeviceMemory mine(group.own(rank).context, 4);
    cuda::DeviceMemory theirs(group.own(rank).context, 4);
    cuda::check(cuda::driver().memset_d8_async(mine.get(), static_cast<unsigned char>(rank), 4, stream), "filling");
    std::array<Operation, 2> ring;
    for (Operation& each : ring) {
      each.dtype = DType::uint8;
      each.count = 4;
      each.stream.handle = stream;
    }
    ring[0].kind = OperationKind::recv;
    ring[0].root = (rank + 2) % 3;
    ring[0].output = TensorView(theirs.pointer(), DType::uint8, {4});
    ring[1].kind = OperationKind::send;
    ring[1].root = (rank + 1) % 3;
    ring[1].input = TensorView(mine.pointer(), DType::uint8, {4});
    ASSERT_EQ(run(group.at(rank), ring).outcome, Outcome::ok);
    EXPECT_EQ(*static_cast<const unsigned char*>(theirs.pointer()), (rank + 2) % 3);
  });
}

TEST_F(NcclOperations, WaitsForTheCallersStreamAndNotForOthers) {
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    cuda::Stream unrelated(group.own(rank).context, cuda::StreamPriority::normal);
    ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(unrelated.get()), CUDA_SUCCESS);
    ASSERT_EQ(FAKE_CUDA(fake_cuda_pause_stream)(stream), CUDA_SUCCESS);
    DeviceCall call = group.call(rank, all_reduce_of(50), 1);
    DeviceCall behind = group.call(rank, all_reduce_of(50), 1);
    call.fill(stream);
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    Request& later = group.at(rank).init({&behind.operation(), 1}, soon());
    later.post();
    EXPECT_EQ(poll_until_end(request, Deadline::after(std::chrono::milliseconds(100))), Outcome::running);
    EXPECT_FALSE(request.started());
    EXPECT_FALSE(later.started());
    ASSERT_EQ(FAKE_CUDA(fake_cuda_resume_stream)(stream), CUDA_SUCCESS);
    ASSERT_EQ(poll_until_end(request), Outcome::ok) << "the unrelated stream still stands";
    EXPECT_TRUE(request.started());
    EXPECT_EQ(poll_until_end(later), Outcome::ok);
    EXPECT_TRUE(later.started());
    call.check(stream);
    request.release();
    later.release();
    FAKE_CUDA(fake_cuda_resume_stream)(unrelated.get());
  });
}

TEST_F(NcclOperations, OrderMakesAStreamWaitAndNotTheHost) {
  faults("AllReduce=kernel_delay:60");
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    DeviceCall call = group.call(rank, all_reduce_of(50), 1);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    cuda::Stream later(group.own(rank).context, cuda::StreamPriority::normal);
    const Stream stream{.device = {.type = DeviceType::cuda, .index = rank}, .handle = later.get()};
    order_once_launched(request, stream);
    call.check(later.get());
    EXPECT_EQ(poll_until_end(request), Outcome::ok);
    request.release();
  });
}

TEST_F(NcclOperations, RunsInTheCallersStreamOnRequest) {
  faults("AllReduce=kernel_delay:30");
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    DeviceCall call = group.call(rank, all_reduce_of(50), 1);
    call.fill(stream);
    call.operation().in_stream = true;
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    const Stream same{.device = {.type = DeviceType::cuda, .index = rank}, .handle = stream};
    order_once_launched(request, same);
    call.check(stream);  // after it, in its own stream
    EXPECT_EQ(poll_until_end(request), Outcome::ok);
    request.release();
  });
}

/// pytorch#191528: the end is recorded before NCCL's helper thread has launched.
TEST_F(NcclOperations, DoesNotEndBeforeItIsLaunched) {
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=launch_delay:40");
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    DeviceCall first = group.call(rank, all_reduce_of(50), 2);
    DeviceCall second = group.call(rank, all_reduce_of(60, 7), 3);
    first.fill(stream);
    second.fill(stream);
    std::array requests{&group.at(rank).init({&first.operation(), 1}, soon()),
                        &group.at(rank).init({&second.operation(), 1}, soon())};
    for (const Ended& ended : drive(group.at(rank), requests)) EXPECT_EQ(ended.outcome, Outcome::ok);
    first.check(stream);
    second.check(stream);
  });
  EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "") << "no call while the one before goes on";
}

/// The second ends in the poll that sees it launched, before any poll of the first.
TEST_F(NcclOperations, AnEndThatIsSeenBeforeAnEarlierOneHidesNoLaterOnes) {
  DeviceGroup group(1);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce#2=launch_delay:40,AllReduce#3=kernel_delay:50");
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    std::deque<DeviceCall> calls;
    const auto post = [&](std::uint64_t sequence) -> Request& {
      DeviceCall& call = calls.emplace_back(group.own(rank).context, all_reduce_of(50), 1, rank, sequence);
      call.fill(stream);
      Request& request = group.at(rank).init({&call.operation(), 1}, soon());
      request.post();
      return request;
    };
    Request& first = post(2);
    Request& second = post(3);
    // the poll queries the event once the stream has reached it
    ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)("cuEventQuery#1=delay:300"), 1);
    Outcome of_second = Outcome::running;
    for (const Deadline limit = soon(); !second.started() && !limit.expired();) of_second = second.poll();
    EXPECT_EQ(poll_until_end(first), Outcome::ok);
    if (of_second == Outcome::running) of_second = poll_until_end(second);
    EXPECT_EQ(of_second, Outcome::ok);
    FAKE_CUDA(fake_cuda_clear_faults)();
    Request& third = post(4);
    EXPECT_EQ(poll_until_end(third), Outcome::ok);
    for (DeviceCall& call : calls) call.check(stream);
    for (Request* request : {&first, &second, &third}) request->release();
  });
}

TEST_F(NcclOperations, GroupsIssuedInDifferentOrdersDoNotHinderEachOther) {
  DeviceGroup first(2, "first");
  DeviceGroup second(2, "second");
  first.on_all([&](int rank) {
    CUstream stream = first.own(rank).stream.get();
    DeviceCall one = first.call(rank, all_reduce_of(50), 1);
    DeviceCall other = second.call(rank, all_reduce_of(70, 3), 1);
    one.fill(stream);
    other.fill(stream);
    Request& a = first.at(rank).init({&one.operation(), 1}, soon());
    Request& b = second.at(rank).init({&other.operation(), 1}, soon());
    (rank == 0 ? a : b).post();
    (rank == 0 ? b : a).post();
    Outcome of_a = Outcome::running;
    Outcome of_b = Outcome::running;
    while (of_a == Outcome::running || of_b == Outcome::running) {
      if (of_a == Outcome::running) of_a = a.poll();
      if (of_b == Outcome::running) of_b = b.poll();
    }
    EXPECT_EQ(of_a, Outcome::ok);
    EXPECT_EQ(of_b, Outcome::ok);
    one.check(stream);
    other.check(stream);
    a.release();
    b.release();
  });
}

TEST_F(NcclOperations, APollLeavesCapturesOfOthersAlone) {
  DeviceGroup group(2);
  group.on_all([&](int rank) { group.run_call(rank, all_reduce_of(10), 1); });
  faults("AllReduce=kernel_delay:50");
  std::barrier ready(2);
  group.on_all([&](int rank) {
    DeviceCall call = group.call(rank, all_reduce_of(50), 1);
    call.fill(group.own(rank).stream.get());
    Request& request = group.at(rank).init({&call.operation(), 1}, soon());
    request.post();
    cuda::Stream other(group.own(rank).context, cuda::StreamPriority::normal);
    const Stream later{.device = {.type = DeviceType::cuda, .index = rank}, .handle = other.get()};
    order_once_launched(request, later);
    ready.arrive_and_wait();  // the other rank must do nothing that captures forbid
    if (rank == 0) {
      cuda::check(cuda::driver().stream_begin_capture(other.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "capturing");
      EXPECT_EQ(poll_until_end(request), Outcome::ok);
      CUgraph graph = nullptr;
      EXPECT_EQ(cuda::driver().stream_end_capture(other.get(), &graph), CUDA_SUCCESS) << "it was invalidated";
      if (graph != nullptr) cuda::driver().graph_destroy(graph);
    }
    ready.arrive_and_wait();
    EXPECT_EQ(poll_until_end(request), Outcome::ok);
    call.check(group.own(rank).stream.get());
    request.release();
  });
}

TEST_F(NcclOperations, IsCapturedIntoAGraphThatKeepsItsMemory) {
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    CUstream stream = group.own(rank).stream.get();
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> kept = owner;
    cuda::DeviceMemory memory(group.own(rank).context, sizeof(float));
    Operation operation;
    operation.kind = OperationKind::all_reduce;
    operation.count = 1;
    operation.input = operation.output = TensorView(memory.pointer(), DType::float32, {1});
    operation.stream.handle = stream;
    operation.keep_alive = owner;
    cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    Request& request = group.at(rank).init({&operation, 1}, soon());
    request.post();
    EXPECT_EQ(request.poll(), Outcome::ok) << "it is a part of the graph: " << request.failure().cause;
    request.release();
    operation.keep_alive.reset();
    CUgraph graph = nullptr;
    cuda::check(cuda::driver().stream_end_capture(stream, &graph), "capturing");
    owner.reset();
    EXPECT_FALSE(kept.expired());
    CUgraphExec program = nullptr;
    cuda::check(cuda::driver().graph_instantiate(&program, graph, 0), "instantiating");
    const float mine = static_cast<float>(rank) + 1;
    cuda::check(cuda::driver().memcpy_async(memory.get(), reinterpret_cast<CUdeviceptr>(&mine), 4, stream), "copying");
    for (int replay = 0; replay < 3; ++replay) cuda::check(cuda::driver().graph_launch(program, stream), "launching");
    cuda::check(cuda::driver().stream_synchronize(stream), "waiting");
    EXPECT_EQ(*static_cast<const float*>(memory.pointer()), 12.0F) << "(1 + 2), then doubled twice";
    cuda::driver().graph_exec_destroy(program);
    cuda::driver().graph_destroy(graph);
    const Deadline limit = soon();
    while (!kept.expired() && !limit.expired()) nccl::GraphKeeper::free_unused();
    EXPECT_TRUE(kept.expired());
  });
}

/// Ends the group, and the capture that @p request could not join.
void end_failed_capture(Backend& backend, Request& request, CUstream stream) {
  backend.abort();
  EXPECT_EQ(poll_until_end(request), Outcome::aborted);
  request.release();
  CUgraph graph = nullptr;
  cuda::check(cuda::driver().stream_end_capture(stream, &graph), "capturing");
  cuda::driver().graph_destroy(graph);
}

TEST_F(NcclOperations, IsNotCapturedBeforeTheGroupIsConnected) {
  DeviceGroup group(1);
  group.on_all([&](int rank) {
    CUstream stream = group.own(rank).stream.get();
    Operation barrier;
    barrier.stream.handle = stream;
    cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    // computes until then
    Request& request = group.at(rank).init({&barrier, 1}, Deadline::after(milliseconds(300)));
    request.post();
    EXPECT_EQ(request.poll(), Outcome::peers_failed);
    EXPECT_NE(request.failure().cause.find("run one first"), std::string::npos) << request.failure().cause;
    end_failed_capture(group.at(rank), request, stream);
  });
}

/// Its graph could use the memory after the owner has freed it.
TEST_F(NcclOperations, IsNotCapturedIfTheGraphCannotKeepItsMemory) {
  for (const char* fault : {"cuUserObjectCreate=fail:2", "cuGraphRetainUserObject=fail:2"}) {
    DeviceGroup group(1);
    group.on_all([&](int rank) {
      group.run_call(rank, all_reduce_of(10), 1);
      CUstream stream = group.own(rank).stream.get();
      const cuda::DeviceMemory memory(group.own(rank).context, sizeof(float));
      const auto owner = std::make_shared<int>(1);
      Operation operation;
      operation.kind = OperationKind::all_reduce;
      operation.count = 1;
      operation.input = operation.output = TensorView(memory.pointer(), DType::float32, {1});
      operation.stream.handle = stream;
      operation.keep_alive = owner;
      cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
      ASSERT_EQ(FAKE_CUDA(fake_cuda_add_faults)(fault), 1);
      Request& request = group.at(rank).init({&operation, 1}, soon());
      request.post();
      FAKE_CUDA(fake_cuda_clear_faults)();
      EXPECT_EQ(request.poll(), Outcome::peers_failed);
      EXPECT_EQ(request.failure().native, "CUDA_ERROR_OUT_OF_MEMORY (2)");
      end_failed_capture(group.at(rank), request, stream);
      operation.keep_alive.reset();
      const Deadline limit = soon();
      while (owner.use_count() > 1 && !limit.expired()) nccl::GraphKeeper::free_unused();
      EXPECT_EQ(owner.use_count(), 1) << fault;
    });
  }
}

}  // namespace

// Sends and receives of NcclBackend, and CUDA graphs of those and of operations that start as one.

namespace {

class NcclTransfers : public NcclTest {
 protected:
  void TearDown() override {
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
};

/// Numbers in device memory, filled and read by a stream of the caller's.
class Numbers {
 public:
  Numbers(const DeviceRank& rank, DType dtype, std::size_t count)
      : dtype_(dtype),
        stream_(rank.stream.get()),
        host_(count * size_of(dtype)),
        memory_(rank.context, std::max<std::size_t>(host_.size(), 1)) {}

  std::size_t count() const { return host_.size() / size_of(dtype_); }
  TensorView view() const { return {memory_.pointer(), dtype_, {static_cast<std::int64_t>(count())}}; }
  void fill(std::int64_t first) {
    store_numbers(dtype_, host_.data(), count(), [&](std::size_t i) { return number(first, i); });
    copy(memory_.get(), reinterpret_cast<CUdeviceptr>(host_.data()));
  }
  /// Whether they are what fill(@p first) wrote, once the stream has reached it.
  bool are(std::int64_t first) {
    std::vector<std::byte> expected(host_.size());
    store_numbers(dtype_, expected.data(), count(), [&](std::size_t i) { return number(first, i); });
    copy(reinterpret_cast<CUdeviceptr>(host_.data()), memory_.get());
    cuda::check(cuda::driver().stream_synchronize(stream_), "waiting for a test's stream");
    return host_ == expected;
  }
  Operation operation(OperationKind kind, int root) const {
    Operation operation;
    operation.kind = kind;
    operation.dtype = dtype_;
    operation.count = count();
    operation.root = root;
    operation.stream.handle = stream_;
    if (kind != OperationKind::recv) operation.input = view();
    if (kind != OperationKind::send) operation.output = view();
    return operation;
  }

 private:
  /// Every type can represent these, and bool both of its values.
  std::int64_t number(std::int64_t first, std::size_t i) const {
    const auto value = first + static_cast<std::int64_t>(i % 3);
    return dtype_ == DType::boolean ? value % 2 : value;
  }
  void copy(CUdeviceptr to, CUdeviceptr from) {
    if (!host_.empty()) cuda::check(cuda::driver().memcpy_async(to, from, host_.size(), stream_), "copying");
  }

  DType dtype_;
  CUstream stream_;
  std::vector<std::byte> host_;
  cuda::DeviceMemory memory_;
};

/// A ring of three, with receives before sends.
TEST_F(NcclTransfers, OfEveryType) {
  DeviceGroup group(3);
  FAKE_NCCL(fake_nccl_set_jitter)(7);
  group.on_all([&](int rank) {
    const int right = (rank + 1) % 3;
    const int left = (rank + 2) % 3;
    for (const DType dtype : kTypes) {
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
        Numbers mine(group.own(rank), dtype, count);
        Numbers theirs(group.own(rank), dtype, count);
        mine.fill(rank);
        theirs.fill(5);
        const std::array both{theirs.operation(OperationKind::recv, left), mine.operation(OperationKind::send, right)};
        ASSERT_EQ(run(group.at(rank), both).outcome, Outcome::ok);
        EXPECT_TRUE(theirs.are(left)) << both[0].description();
        EXPECT_TRUE(mine.are(rank)) << both[1].description();
      }
    }
  });
  FAKE_NCCL(fake_nccl_set_jitter)(0);
}

/// Captures what @p record posts, and launches it @p times.
void launch_captured(Backend& backend, CUstream stream, std::span<const Operation> operations, int times,
                     const std::function<void(int)>& before, const std::function<void(int)>& behind) {
  cuda::check(cuda::driver().stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
  Request& request = backend.init(operations, soon());
  request.post();
  EXPECT_EQ(request.poll(), Outcome::ok) << request.failure().cause;
  request.release();
  CUgraph graph = nullptr;
  cuda::check(cuda::driver().stream_end_capture(stream, &graph), "capturing");
  CUgraphExec program = nullptr;
  cuda::check(cuda::driver().graph_instantiate(&program, graph, 0), "instantiating");
  for (int launch = 0; launch < times; ++launch) {
    before(launch);
    cuda::check(cuda::driver().graph_launch(program, stream), "launching");
    behind(launch);
  }
  cuda::driver().graph_exec_destroy(program);
  cuda::driver().graph_destroy(graph);
}

TEST_F(NcclTransfers, AreCapturedIntoAGraph) {
  DeviceGroup group(3);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    const int left = (rank + 2) % 3;
    Numbers mine(group.own(rank), DType::float32, 100);
    Numbers theirs(group.own(rank), DType::float32, 100);
    const std::array both{theirs.operation(OperationKind::recv, left),
                          mine.operation(OperationKind::send, (rank + 1) % 3)};
    launch_captured(
        group.at(rank), group.own(rank).stream.get(), both, 3, [&](int launch) { mine.fill(rank + 10 * launch); },
        [&](int launch) { EXPECT_TRUE(theirs.are(left + 10 * launch)) << launch; });
  });
}

/// One send and one receive of two ranks, each in its own graph.
TEST_F(NcclTransfers, AloneAreCapturedIntoAGraph) {
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    Numbers numbers(group.own(rank), DType::int64, 50);
    const Operation one = numbers.operation(rank == 0 ? OperationKind::send : OperationKind::recv, 1 - rank);
    launch_captured(
        group.at(rank), group.own(rank).stream.get(), {&one, 1}, 2,
        [&](int launch) { numbers.fill(rank == 0 ? launch + 1 : 9); },
        [&](int launch) { EXPECT_TRUE(numbers.are(launch + 1)) << launch; });
  });
}

TEST_F(NcclTransfers, CollectivesThatStartAsOneAreCapturedIntoAGraph) {
  DeviceGroup group(2);
  group.on_all([&](int rank) {
    group.run_call(rank, all_reduce_of(10), 1);
    CUstream stream = group.own(rank).stream.get();
    DeviceCall sum = group.call(rank, all_reduce_of(50), 2);
    DeviceCall all = group.call(rank, {.kind = OperationKind::all_gather, .count = 20, .seed = 3}, 3);
    sum.operation().stream.handle = stream;
    all.operation().stream.handle = stream;
    const std::array both{sum.operation(), all.operation()};
    launch_captured(
        group.at(rank), stream, both, 2,
        [&](int) {
          sum.fill(stream);
          all.fill(stream);
        },
        [&](int) {
          sum.check(stream);
          all.check(stream);
        });
    group.run_call(rank, all_reduce_of(10), 4);
  });
}

}  // namespace

}  // namespace ddp::collectives::testing
