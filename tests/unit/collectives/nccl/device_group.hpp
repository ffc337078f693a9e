// A group of threads that call NcclBackend directly.
#pragma once

#include "unit/collectives/nccl/device_ranks.hpp"

namespace ddp::collectives::testing {

class DeviceGroup {
 public:
  explicit DeviceGroup(int size, const std::string& name = "devices") : ranks_(nccl_ranks(size), name) {
    for (int rank = 0; rank < size; ++rank) own_.push_back(std::make_unique<DeviceRank>(rank));
  }
  int size() const { return ranks_.size(); }
  Backend& at(int rank) { return ranks_.at(rank); }
  DeviceRank& own(int rank) { return *own_[static_cast<std::size_t>(rank)]; }

  /// On a thread for each rank, whose device is current.
  void on_all(const std::function<void(int)>& body) {
    ranks_.on_all([&](int rank) {
      const cuda::ContextScope scope(*own(rank).context);
      body(rank);
    });
  }
  DeviceCall call(int rank, const Call& call, std::uint64_t sequence) {
    return DeviceCall(own(rank).context, call, size(), rank, sequence);
  }
  /// Fills, runs, compares.
  void run_call(int rank, const Call& what, std::uint64_t sequence) {
    DeviceCall one = call(rank, what, sequence);
    CUstream stream = own(rank).stream.get();
    one.fill(stream);
    const Ended ended = run(at(rank), one.operation());
    ASSERT_EQ(ended.outcome, Outcome::ok)
        << one.operation().description() << ": " << ended.failure.cause << " " << ended.failure.native;
    one.check(stream);
  }

 private:
  std::vector<std::unique_ptr<DeviceRank>> own_;
  BackendRanks ranks_;
};

inline Call all_reduce_of(std::size_t count, std::uint64_t seed = 1) {
  return {.kind = OperationKind::all_reduce, .count = count, .seed = seed};
}

/// Polls until it has ended; running if it does not.
inline Outcome poll_until_end(Request& request, Deadline deadline = soon()) {
  Outcome outcome = request.poll();
  while (outcome == Outcome::running && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    outcome = request.poll();
  }
  return outcome;
}

/// Orders @p stream behind it as soon as NCCL has launched it.
inline void order_once_launched(Request& request, const Stream& stream) {
  const Deadline limit = soon();
  bool ordered = request.order(stream);
  while (!ordered && !limit.expired()) {
    static_cast<void>(request.poll());
    ordered = request.order(stream);
  }
  EXPECT_TRUE(ordered) << "NCCL has not launched it";
}

struct NcclTest : ::testing::Test {
  static void SetUpTestSuite() { use_doubles(); }
  void SetUp() override { ASSERT_TRUE(FAKE_NCCL(fake_nccl_faults)("")); }
  void TearDown() override {
    FAKE_NCCL(fake_nccl_release)();
    FAKE_NCCL(fake_nccl_faults)("");
  }
  static void faults(const char* rules) { ASSERT_TRUE(FAKE_NCCL(fake_nccl_faults)(rules)) << rules; }
};

}  // namespace ddp::collectives::testing
