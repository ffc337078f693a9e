// Every operation over random placements of ranks, against plainly computed results. One thread drives all ranks, so
// that the order of their steps is random, and the same in each run.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>

#include "support/sanitized.hpp"
#include "unit/collectives/checked_call.hpp"
#include "unit/collectives/hierarchy/board_hierarchy.hpp"

namespace ddp::collectives::testing {
namespace {

constexpr std::array kKinds{OperationKind::all_reduce, OperationKind::broadcast,      OperationKind::reduce,
                            OperationKind::all_gather, OperationKind::all_gather_v,   OperationKind::gather,
                            OperationKind::scatter,    OperationKind::reduce_scatter, OperationKind::all_to_all,
                            OperationKind::barrier};

/// A group in one thread.
class Ranks {
 public:
  Ranks(const std::vector<int>& labels, const Board::Options& options, std::size_t segment_bytes)
      : boards_(labels, options, segment_bytes), random_(options.seed) {
    for (std::size_t rank = 0; rank < labels.size(); ++rank) backends_.push_back(boards_.make(static_cast<int>(rank)));
  }
  int size() const { return static_cast<int>(backends_.size()); }
  const BoardHierarchy& boards() const { return boards_; }

  /// Runs operations of all ranks to their ends; each list starts at once, its elements in order.
  std::vector<Outcome> run(const std::vector<std::vector<const Operation*>>& of_rank) {
    struct Running {
      Request* request;
      std::size_t rank;
    };
    std::vector<Running> running;
    std::vector<Outcome> outcomes(of_rank.size(), Outcome::ok);
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
      for (const Operation* operation : of_rank[rank]) {
        running.push_back({&backends_[rank]->init({operation, 1}, deadline), rank});
        running.back().request->post();
      }
    }
    while (!running.empty()) {
      const std::size_t index = random_() % running.size();
      const Running each = running[index];
      const Outcome outcome = each.request->poll();
      if (outcome == Outcome::running) continue;
      if (outcome != Outcome::ok) outcomes[each.rank] = outcome;
      each.request->release();
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    }
    return outcomes;
  }

  void run_checked(const std::vector<Call>& calls, std::uint64_t& sequence) {
    std::vector<std::vector<std::unique_ptr<CheckedCall>>> checked(backends_.size());
    std::vector<std::vector<const Operation*>> operations(backends_.size());
    for (const Call& call : calls) {
      ++sequence;
      for (int rank = 0; rank < size(); ++rank) {
        const auto own = static_cast<std::size_t>(rank);
        checked[own].push_back(std::make_unique<CheckedCall>(call, size(), rank, sequence));
        operations[own].push_back(&checked[own].back()->operation());
      }
    }
    for (const Outcome outcome : run(operations)) ASSERT_EQ(outcome, Outcome::ok);
    for (const auto& rank : checked) {
      for (const auto& call : rank) call->check();
    }
  }

 private:
  BoardHierarchy boards_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

TEST(HierarchyLayouts, EveryOperationOverRandomPlacements) {
  std::mt19937 random(20);
  for (unsigned round = 0; round < ::ddp::test::cases(200); ++round) {
    std::vector<int> labels(1 + random() % 12);
    const unsigned nodes = 1 + random() % 5;
    for (int& label : labels) label = static_cast<int>(random() % nodes);
    SCOPED_TRACE(fmt::format("round {}, domains [{}]", round, fmt::join(labels, ", ")));
    const Board::Options options{
        .concurrent_collectives = static_cast<int>(1 + random() % 3), .tells_of_aborts = false, .seed = round};
    constexpr std::size_t kSegment = 240;
    Ranks ranks(labels, options, kSegment);
    std::uint64_t sequence = 0;
    std::vector<Call> calls;
    for (const OperationKind kind : kKinds) {
      Call call{.kind = kind,
                .dtype = kTypes[random() % kTypes.size()],
                .op = kReductions[random() % kReductions.size()],
                .count = random() % 4 == 0 ? random() % 3 : random() % 300,
                .root = static_cast<int>(random() % labels.size()),
                .in_place = random() % 2 == 0,
                .shift = random() % 3,
                .seed = random()};
      if (call.op == ReduceOp::avg && size_of(call.dtype) == 1) call.op = ReduceOp::max;  // it could not hold them
      const bool rounds = call.dtype == DType::float16 || call.dtype == DType::bfloat16;
      if (call.op == ReduceOp::product && rounds) call.op = ReduceOp::min;
      if (!reducible(call.dtype, call.op)) call.op = ReduceOp::sum;
      calls.push_back(call);
    }
    std::shuffle(calls.begin(), calls.end(), random);
    // some of them at the same time
    for (std::size_t first = 0; first < calls.size();) {
      const std::size_t together = std::min<std::size_t>(1 + random() % 4, calls.size() - first);
      const auto begin = calls.begin() + static_cast<std::ptrdiff_t>(first);
      ranks.run_checked({begin, begin + static_cast<std::ptrdiff_t>(together)}, sequence);
      if (::testing::Test::HasFailure()) return;
      first += together;
    }
    ASSERT_EQ(ranks.boards().violations(), 0);
  }
}

/// Sums of floats whose last bits show the bracketing: by domain, whatever the size of the operation.
TEST(HierarchyLayouts, OneBracketingForAllSizes) {
  const std::vector<int> labels{0, 1, 0, 2, 1, 0};
  const auto value = [](std::size_t rank, std::size_t i) {
    return static_cast<float>((rank * 7919 + i * 104'729) % 20'011) * 0.0137F - 100;
  };
  const auto expected = [&](std::size_t i) {
    const float first = (value(0, i) + value(2, i)) + value(5, i);
    return (first + (value(1, i) + value(4, i))) + value(3, i);
  };
  for (const std::size_t count : {1, 10, 100, 5'000}) {
    for (const OperationKind kind : {OperationKind::all_reduce, OperationKind::reduce, OperationKind::reduce_scatter}) {
      const bool parted = kind == OperationKind::reduce_scatter;
      Ranks ranks(labels, {}, 400);
      std::vector<std::vector<float>> values(labels.size());
      std::vector<Operation> operations(labels.size());
      std::vector<std::vector<const Operation*>> lists(labels.size());
      for (std::size_t rank = 0; rank < labels.size(); ++rank) {
        for (std::size_t i = 0; i < count * (parted ? labels.size() : 1); ++i) values[rank].push_back(value(rank, i));
        Operation& operation = operations[rank];
        operation.kind = kind;
        operation.root = kind == OperationKind::reduce ? 4 : -1;
        operation.count = count;
        operation.input = values[rank];
        operation.output = parted ? operation.input.slice(rank * count, count) : operation.input;
        lists[rank].push_back(&operation);
      }
      for (const Outcome outcome : ranks.run(lists)) ASSERT_EQ(outcome, Outcome::ok);
      for (std::size_t rank = 0; rank < labels.size(); ++rank) {
        if (kind == OperationKind::reduce && rank != 4) continue;
        const std::size_t first = parted ? rank * count : 0;
        for (std::size_t i = first; i < first + count; ++i) ASSERT_EQ(values[rank][i], expected(i)) << rank << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace ddp::collectives::testing
