// Two ranks that share memory run small operations one after the other, with delays that place their steps at each
// other in every way. DDP_TEST_OPERATIONS says how many; ten million take some minutes.
#include "multiproc/shm_processes.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives::shm {
namespace {

constexpr long kUsual = ::ddp::test::cases(100'000);

/// The same on both ranks but for the data.
struct SmallCall {
  OperationKind kind;
  std::size_t count;  ///< elements: 0 to 257 bytes
  int root;
  std::size_t shift;  ///< of the tensors' addresses, in bytes
};

class ManyOperations : public ShmProcesses {
 protected:
  void run_many(int rank, long operations) {
    const auto backend = connected(0, {0, 1}, rank);
    std::mt19937 calls{7};                                    // NOLINT(cert-msc51-cpp): the same on both ranks
    std::mt19937 delays{static_cast<unsigned>(rank) + 100U};  // NOLINT(cert-msc51-cpp): and in every run
    std::array<std::uint8_t, 600> in{};
    std::array<std::uint8_t, 600> out{};
    for (long i = 1; i <= operations; ++i) {
      const SmallCall call{.kind = std::array{OperationKind::all_reduce, OperationKind::broadcast,
                                              OperationKind::all_gather, OperationKind::barrier}[calls() % 4],
                           .count = calls() % 258,
                           .root = static_cast<int>(calls() % 2),
                           .shift = calls() % 16};
      delay(delays);
      const auto own = static_cast<std::uint8_t>(i * 3 + rank);
      std::fill_n(in.begin() + call.shift, call.count, own);
      std::fill_n(out.begin(), out.size(), std::uint8_t{0xee});
      Operation operation;
      operation.kind = call.kind;
      operation.dtype = DType::uint8;
      operation.sequence = static_cast<std::uint64_t>(i);
      if (call.kind != OperationKind::barrier) operation.count = call.count;
      if (call.kind == OperationKind::broadcast) operation.root = call.root;
      const std::size_t outputs = call.kind == OperationKind::all_gather ? 2 * call.count : call.count;
      operation.input = std::span(in.data() + call.shift, call.count);
      operation.output = std::span(out.data() + call.shift, outputs);
      const Ended ended = run(*backend, operation);
      ASSERT_EQ(ended.outcome, Outcome::ok) << "operation " << i << ": " << ended.failure.cause;
      if (call.kind != OperationKind::barrier) check(call, out, i);
      ASSERT_FALSE(HasFailure());
    }
    backend->close(testing::soon());
  }

 private:
  /// Mostly none, often some hundred nanoseconds, sometimes so long that the other rank falls asleep.
  static void delay(std::mt19937& random) {
    const auto die = random();
    if (die % 4096 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    if (die % 8 != 0) return;
    for (auto left = die / 8 % 512; left > 0; --left) std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  static void check(const SmallCall& call, const std::array<std::uint8_t, 600>& out, long i) {
    const auto of = [i](int rank) { return static_cast<std::uint8_t>(i * 3 + rank); };
    std::array<std::uint8_t, 2> expected{};
    switch (call.kind) {
      case OperationKind::all_reduce: expected.fill(static_cast<std::uint8_t>(of(0) + of(1))); break;
      case OperationKind::broadcast: expected.fill(of(call.root)); break;
      default: expected = {of(0), of(1)};
    }
    const std::size_t parts = call.kind == OperationKind::all_gather ? 2 : 1;
    for (std::size_t at = 0; at < out.size(); ++at) {
      const bool inside = at >= call.shift && at < call.shift + parts * call.count;
      const std::uint8_t wanted = inside ? expected[(at - call.shift) / call.count] : std::uint8_t{0xee};
      ASSERT_EQ(out[at], wanted) << "byte " << at << " of operation " << i << ", " << to_string(call.kind);
    }
  }
};

TEST_F(ManyOperations, OfEverySizeWithRandomDelays) {
  const char* const wanted = std::getenv("DDP_TEST_OPERATIONS");
  const long operations = wanted != nullptr ? std::atol(wanted) : kUsual;
  start([&](int rank) {
    if (rank < 2) run_many(rank, operations);
  });
  expect_success(0);
  expect_success(1);
}

}  // namespace
}  // namespace ddp::collectives::shm
