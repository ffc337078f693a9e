// What every ddp::Backend must do, driven directly. A test program of a backend includes this in one file and names its
// subjects: INSTANTIATE_TEST_SUITE_P(Shm, BackendContract, Values(Subject{...}), subject_name).
#pragma once

#include "support/sanitized.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::testing {

struct BackendContract : ::testing::TestWithParam<Subject> {
  int size() const { return GetParam().size; }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// Runs the calls in order on every rank and compares the results.
  void run_all(BackendRanks& group, const std::vector<Call>& calls) {
    group.on_all([&](int rank) {
      std::uint64_t sequence = 0;
      for (const Call& call : calls) {
        CheckedCall checked(call, size(), rank, ++sequence);
        const Ended ended = run(group.at(rank), checked.operation());
        ASSERT_EQ(ended.outcome, Outcome::ok) << checked.operation().description() << ": " << ended.failure.cause;
        checked.check();
        if (::testing::Test::HasFatalFailure()) return;
      }
    });
  }
};

inline std::string subject_name(const ::testing::TestParamInfo<Subject>& info) { return info.param.name; }

inline constexpr std::array kCollectives{
    OperationKind::all_reduce,   OperationKind::broadcast, OperationKind::reduce,  OperationKind::all_gather,
    OperationKind::all_gather_v, OperationKind::gather,    OperationKind::scatter, OperationKind::reduce_scatter,
    OperationKind::all_to_all,   OperationKind::barrier};

TEST_P(BackendContract, EverySizeFrom0To257Bytes) {
  BackendRanks group(GetParam());
  for (const OperationKind kind : kCollectives) {
    std::vector<Call> calls;
    for (const DType dtype : kTypes) {
      // Every size for the narrowest and the widest type, the sizes around powers of two for the others; sanitizers
      // see these of all types.
      for (std::size_t count = 0; count * size_of(dtype) <= 257; ++count) {
        const bool all =
            !::ddp::test::kSanitized && (dtype == DType::uint8 || dtype == DType::float64 || dtype == DType::float16);
        const std::size_t above = count & (count - 1);
        if (!all && above != 0 && (count & (count + 1)) != 0 && above != 1) continue;
        const ReduceOp op = some_reduction(dtype, count);
        calls.push_back({.kind = kind,
                         .dtype = dtype,
                         .op = op,
                         .count = count,
                         .root = static_cast<int>(count % ranks()),
                         .in_place = count % 2 == 0,
                         .shift = count % 3,
                         .seed = count});
      }
      if (kind == OperationKind::barrier) break;
    }
    run_all(group, calls);
  }
}

TEST_P(BackendContract, EveryReductionOfEveryType) {
  BackendRanks group(GetParam());
  std::vector<Call> calls;
  for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::reduce, OperationKind::reduce_scatter}) {
    for (const DType dtype : kTypes) {
      for (const ReduceOp op : kReductions) {
        if (!reducible(dtype, op)) continue;
        for (const std::size_t count : {1, 33, 3000, 20'001}) {
          if (count > 3000 && op != ReduceOp::avg && op != ReduceOp::max) continue;
          calls.push_back({.kind = kind,
                           .dtype = dtype,
                           .op = op,
                           .count = count,
                           .root = size() - 1,
                           .in_place = count % 3 == 0,
                           .shift = 1,
                           .seed = count});
        }
      }
    }
    for (const DType dtype : {DType::float32, DType::float16, DType::float8_e4m3fn, DType::complex128}) {
      for (const std::size_t count : {1, 3000}) {
        calls.push_back({.kind = kind, .dtype = dtype, .count = count, .in_place = count == 1, .prescale = 0.5});
      }
    }
  }
  run_all(group, calls);
}

TEST_P(BackendContract, LargeTensorsAndEveryRoot) {
  BackendRanks group(GetParam());
  for (const OperationKind kind : kCollectives) {
    const bool parted = kind != OperationKind::all_reduce && kind != OperationKind::reduce &&
                        kind != OperationKind::broadcast && kind != OperationKind::barrier;
    std::vector<Call> calls;
    for (const DType dtype : {DType::float32, DType::uint8}) {
      const std::size_t count =
          GetParam().large_bytes / size_of(dtype) / (parted ? ranks() : 1) / (dtype == DType::uint8 ? 8 : 1);
      calls.push_back({.kind = kind,
                       .dtype = dtype,
                       .op = ReduceOp::sum,
                       .count = count,
                       .root = 0,
                       .in_place = dtype == DType::uint8,
                       .shift = 3,
                       .seed = 1});
    }
    for (int root = 0; root < size(); ++root) {
      calls.push_back({.kind = kind,
                       .dtype = DType::int64,
                       .op = ReduceOp::max,
                       .count = 9'001,
                       .root = root,
                       .in_place = root % 2 == 0,
                       .shift = 1,
                       .seed = 2});
    }
    run_all(group, calls);
  }
}

/// Sums of random floats: their last bits depend on the order of additions.
TEST_P(BackendContract, SameBitsOnAllRanksAndInEveryRun) {
  using Bits = std::vector<std::vector<std::byte>>;  // results of one rank
  const auto outcome_of = [&] {
    BackendRanks group(GetParam());
    std::vector<Bits> bits(ranks());
    group.on_all([&](int rank) {
      std::uint64_t sequence = 0;
      for (const std::size_t count : {1, 7, 100, 1'001, 20'000, ::ddp::test::cases(300'007)}) {
        for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
            std::mt19937 random(static_cast<unsigned>(count * 31 + static_cast<std::size_t>(rank)));
            std::vector<std::byte> values(count * size_of(dtype));
            for (std::size_t i = 0; i < count; ++i) {
              const float value = static_cast<float>(random() % 20'001) * 0.001F - 10;
              std::byte* const to = values.data() + i * size_of(dtype);
              if (dtype == DType::float64) {
                const double wide = static_cast<double>(value) / 3;
                std::memcpy(to, &wide, sizeof wide);
              } else if (dtype == DType::float32) {
                std::memcpy(to, &value, sizeof value);
              } else {
                const std::uint16_t half = dtype == DType::float16 ? to_half(value).bits : to_bfloat16(value).bits;
                std::memcpy(to, &half, sizeof half);
              }
            }
            Operation operation;
            operation.dtype = dtype;
            operation.kind = OperationKind::all_reduce;
            operation.reduce_op = op;
            operation.count = count;
            operation.sequence = ++sequence;
            operation.input = operation.output = {values.data(), dtype, {static_cast<std::int64_t>(count)}};
            ASSERT_EQ(run(group.at(rank), operation).outcome, Outcome::ok);
            bits[static_cast<std::size_t>(rank)].push_back(std::move(values));
          }
        }
      }
    });
    return bits;
  };
  const auto first = outcome_of();
  for (std::size_t rank = 1; rank < ranks(); ++rank) EXPECT_TRUE(first[rank] == first[0]) << "rank " << rank;
  EXPECT_TRUE(outcome_of() == first) << "the second run";
}

/// 1e8 + 1 - 1e8 in float shows the order; halves of many small parts show that they are rounded once.
TEST_P(BackendContract, FlatBackendsCombineInRankOrder) {
  if (!GetParam().flat_bits) GTEST_SKIP() << "combines in another fixed order";
  if (size() < 3) GTEST_SKIP() << "two have only one order";
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    std::uint64_t sequence = 0;
    for (const std::size_t count : {1, 999, 100'000}) {
      const float mine = rank == 0 ? 1e8F : rank == size() - 1 ? -1e8F : 3.0F;
      float expected = 1e8F;
      for (int other = 1; other < size(); ++other) expected += other == size() - 1 ? -1e8F : 3.0F;
      std::vector<float> values(count, mine);
      Operation operation{.kind = OperationKind::all_reduce,
                          .dtype = DType::float32,
                          .reduce_op = ReduceOp::sum,
                          .root = -1,
                          .tag = 0,
                          .count = count,
                          .input = values,
                          .output = values,
                          .sequence = ++sequence,
                          .keep_alive = nullptr};
      ASSERT_EQ(run(group.at(rank), operation).outcome, Outcome::ok);
      EXPECT_EQ(values, std::vector<float>(count, expected)) << count;

      // 2048 + 1 is 2048 in float16, 2048 + 1 + 1 is 2050
      std::vector<Half> halves(count, to_half(rank == 0 ? 2048.0F : 1.0F));
      operation.dtype = DType::float16;
      operation.input = operation.output = std::span<Half>(halves);
      operation.sequence = ++sequence;
      ASSERT_EQ(run(group.at(rank), operation).outcome, Outcome::ok);
      const std::uint16_t sum = to_half(2048.0F + static_cast<float>(size() - 1)).bits;
      for (const Half half : halves) ASSERT_EQ(half.bits, sum) << count;
    }
  });
}

TEST_P(BackendContract, SeveralPostedAtOnceAndCoalesced) {
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    std::uint64_t sequence = 0;
    for (const std::size_t count : {5, 2'000, 60'000}) {
      std::vector<std::unique_ptr<CheckedCall>> calls;
      for (const OperationKind kind : kCollectives) {
        calls.push_back(std::make_unique<CheckedCall>(Call{.kind = kind,
                                                           .dtype = DType::int32,
                                                           .op = ReduceOp::sum,
                                                           .count = count,
                                                           .root = 1,
                                                           .in_place = false,
                                                           .shift = 0,
                                                           .seed = count},
                                                      size(), rank, ++sequence));
      }
      std::vector<Request*> requests;
      for (const auto& call : calls) requests.push_back(&group.at(rank).init({&call->operation(), 1}, soon()));
      for (const Ended& ended : drive(group.at(rank), requests)) ASSERT_EQ(ended.outcome, Outcome::ok);
      for (const auto& call : calls) call->check();

      calls.clear();
      std::vector<Operation> operations;
      for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::all_gather, OperationKind::broadcast,
                                       OperationKind::all_reduce, OperationKind::barrier}) {
        calls.push_back(std::make_unique<CheckedCall>(Call{.kind = kind,
                                                           .dtype = DType::bfloat16,
                                                           .op = ReduceOp::avg,
                                                           .count = count + calls.size(),
                                                           .root = 0,
                                                           .in_place = true,
                                                           .shift = 1,
                                                           .seed = count},
                                                      size(), rank, ++sequence));
        operations.push_back(calls.back()->operation());
      }
      ASSERT_EQ(run(group.at(rank), operations).outcome, Outcome::ok);
      for (const auto& call : calls) call->check();
    }
  });
}

TEST_P(BackendContract, ManySmallOperationsWithRandomDelays) {
  BackendRanks group(GetParam());
  group.on_all([&](int rank) {
    std::mt19937 same(7);                                    // the calls, equal on all ranks
    std::mt19937 own(static_cast<unsigned>(rank) * 13 + 5);  // the delays
    for (std::size_t i = 1; i <= GetParam().many; ++i) {
      const CheckedCall call({.kind = kCollectives[same() % kCollectives.size()],
                              .dtype = kTypes[same() % 4],
                              .op = kReductions[same() % 5],
                              .count = same() % 40,
                              .root = static_cast<int>(same() % ranks()),
                              .in_place = same() % 2 == 0,
                              .shift = 0,
                              .seed = i},
                             size(), rank, i);
      const unsigned delay = own() % 1000;
      if (delay == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (delay < 10) std::this_thread::yield();
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(delay < 300 ? delay * 20 : 0);
      while (std::chrono::steady_clock::now() < until) {
      }
      const Ended ended = run(group.at(rank), call.operation());
      ASSERT_EQ(ended.outcome, Outcome::ok) << call.operation().description() << ": " << ended.failure.cause;
      call.check();
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST_P(BackendContract, TwoGroupsAtOnce) {
  BackendRanks first(GetParam(), "first");
  BackendRanks second(GetParam(), "second");
  first.on_all([&](int rank) {
    for (std::uint64_t i = 1; i <= 20; ++i) {
      const CheckedCall in_first({.kind = OperationKind::all_reduce, .count = i * 1000, .seed = i}, size(), rank, i);
      const CheckedCall in_second({.kind = OperationKind::all_gather, .count = i * 500, .seed = i + 1}, size(), rank,
                                  i);
      Request& one = first.at(rank).init({&in_first.operation(), 1}, soon());
      Request& other = second.at(rank).init({&in_second.operation(), 1}, soon());
      one.post();
      other.post();
      // ranks look at the two in different orders
      Request& earlier = rank % 2 == 0 ? one : other;
      Request& later = rank % 2 == 0 ? other : one;
      Outcome first_end = Outcome::running;
      Outcome second_end = Outcome::running;
      while (first_end == Outcome::running || second_end == Outcome::running) {
        if (first_end == Outcome::running) first_end = earlier.poll();
        if (second_end == Outcome::running) second_end = later.poll();
        std::this_thread::yield();
      }
      one.release();
      other.release();
      ASSERT_EQ(first_end, Outcome::ok);
      ASSERT_EQ(second_end, Outcome::ok);
      in_first.check();
      in_second.check();
    }
  });
}

}  // namespace ddp::collectives::testing
