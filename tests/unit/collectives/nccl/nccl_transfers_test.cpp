// Sends and receives of NcclBackend, and CUDA graphs of them and of operations that start as one.
#include <gmock/gmock.h>

#include "collectives/nccl/graph_keeper.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

class NcclTransfers : public NcclTest {
 protected:
  void TearDown() override {
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
};

/// Numbers in a device's memory, filled and read by a stream of the caller's.
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
  /// Whether they are what fill(@p first) has made, once the stream has come to it.
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
  /// Each type has them, and a boolean both of its own.
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

/// A ring of three: receives stand before sends.
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

/// As one send and one receive of two ranks, each in a graph of its own.
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
