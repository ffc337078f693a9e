// Every operation over random placements of ranks, against plainly computed results. One thread drives all ranks, so
// the order of their steps is random, but the same in each run.
#include <fmt/ranges.h>

#include "support/sanitized.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"
#include "unit/collectives/checked_call.hpp"
#include "unit/collectives/hierarchy/board_backend.hpp"

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
      if (call.op == ReduceOp::avg && size_of(call.dtype) == 1)
        call.op = ReduceOp::max;  // the type could not hold the sum
      const bool rounds = call.dtype == DType::float16 || call.dtype == DType::bfloat16;
      if (call.op == ReduceOp::product && rounds) call.op = ReduceOp::min;
      if (!reducible(call.dtype, call.op)) call.op = ReduceOp::sum;
      calls.push_back(call);
    }
    std::shuffle(calls.begin(), calls.end(), random);
    // some at the same time
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

/// Sums of floats whose last bits show the bracketing: by domain, whatever the operation's size.
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

// The conformance suite of backends, for hierarchical ones over boards.

namespace {

/// Ranks of a group are created in order: rank 0 makes the boards.
Subject over_boards(std::string name, std::vector<int> nodes, int concurrent_collectives) {
  auto groups = std::make_shared<std::map<std::string, BoardHierarchy>>();
  Subject subject{.name = std::move(name),
                  .create =
                      [groups, concurrent_collectives](const BackendConfig& config) {
                        if (config.rank == 0) {
                          const Board::Options options{
                              .concurrent_collectives = concurrent_collectives, .tells_of_aborts = false, .seed = 3};
                          groups->insert_or_assign(config.group, BoardHierarchy(config.nodes, options, 16'000));
                        }
                        return groups->at(config.group).make(config.rank);
                      },
                  .size = static_cast<int>(nodes.size()),
                  .nodes = std::move(nodes)};
  subject.flat_bits = false;
  subject.reports_mismatch = false;  // only the domains of the differing ranks know
  subject.many = 200;
  subject.large_bytes = 200'004;
  return subject;
}

INSTANTIATE_TEST_SUITE_P(Hierarchy, BackendContract, ::testing::Values(over_boards("cyclic", {0, 1, 0}, 2)),
                         subject_name);

}  // namespace

// What the ranks of a hierarchical backend see if one dies, whichever it is and whatever is in progress.

namespace {

class HierarchyFailures : public ::testing::TestWithParam<std::tuple<OperationKind, int>> {};

/// Every survivor's operation ends and names ranks of the group: the dead one, or a leader that has given up.
TEST_P(HierarchyFailures, ADeathEndsTheOperationOfEveryRank) {
  const auto [kind, victim] = GetParam();
  const std::vector<int> labels{0, 1, 0, 1, 0, 2};
  const int size = static_cast<int>(labels.size());
  const auto dead = static_cast<std::size_t>(victim);
  for (const unsigned steps : {0, 5, 40, 200}) {
    SCOPED_TRACE(fmt::format("after {} polls", steps));
    const BoardHierarchy boards(labels, {.concurrent_collectives = 1, .tells_of_aborts = true, .seed = steps}, 400);
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<std::unique_ptr<CheckedCall>> calls;
    std::vector<Request*> requests;
    const Deadline far = Deadline::after(std::chrono::minutes(10));
    for (int rank = 0; rank < size; ++rank) {
      backends.push_back(boards.make(rank));
      calls.push_back(std::make_unique<CheckedCall>(Call{.kind = kind, .count = 5'000, .root = 2}, size, rank, 1));
      requests.push_back(&backends.back()->init({&calls.back()->operation(), 1}, far));
      requests.back()->post();
    }
    std::mt19937 random(steps);
    std::vector<Outcome> outcomes(labels.size(), Outcome::running);
    const auto poll = [&](std::size_t rank) {
      if (outcomes[rank] == Outcome::running) outcomes[rank] = requests[rank]->poll();
    };
    for (unsigned step = 0; step < steps; ++step) poll(random() % labels.size());
    boards.kill(victim);
    for (int round = 0; round < 10'000; ++round) {
      for (std::size_t rank = 0; rank < labels.size(); ++rank) {
        if (rank != dead) poll(rank);
      }
    }
    for (std::size_t rank = 0; rank < labels.size(); ++rank) {
      if (rank == dead) continue;
      ASSERT_NE(outcomes[rank], Outcome::running) << "rank " << rank;
      if (outcomes[rank] == Outcome::ok) continue;  // it was complete
      ASSERT_EQ(outcomes[rank], Outcome::peers_failed) << "rank " << rank;
      const Failure failure = requests[rank]->failure();
      ASSERT_FALSE(failure.ranks.empty());
      const bool neighbour = labels[rank] == labels[dead];
      const auto named = std::find(failure.ranks.begin(), failure.ranks.end(), victim) != failure.ranks.end();
      if (neighbour) {
        EXPECT_TRUE(named) << "rank " << rank;
      }
      requests[rank]->release();
      // and so do later operations
      const CheckedCall next({.kind = OperationKind::barrier}, size, static_cast<int>(rank), 2);
      Request& later = backends[rank]->init({&next.operation(), 1}, far);
      later.post();
      EXPECT_EQ(later.poll(), Outcome::peers_failed);
      later.release();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HierarchyFailures,
                         ::testing::Combine(::testing::Values(OperationKind::all_reduce, OperationKind::reduce_scatter,
                                                              OperationKind::all_gather, OperationKind::all_to_all),
                                            ::testing::Values(0, 1, 3, 4, 5)),
                         [](const auto& each) {
                           return fmt::format("{}_{}", to_string(std::get<0>(each.param)), std::get<1>(each.param));
                         });

/// In its own domain, a broadcast from another domain's root comes from the leader, whichever root that is.
TEST(HierarchyMismatch, RanksThatNameDifferentRootsNotice) {
  const BoardHierarchy boards({0, 1, 0, 1}, {}, 400);
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<CheckedCall>> calls;
  std::vector<Request*> requests;
  for (int rank = 0; rank < 4; ++rank) {
    backends.push_back(boards.make(rank));
    const Call call{.kind = OperationKind::broadcast, .count = 10, .root = rank == 2 ? 1 : 0};
    calls.push_back(std::make_unique<CheckedCall>(call, 4, rank, 1));
    requests.push_back(
        &backends.back()->init({&calls.back()->operation(), 1}, Deadline::after(std::chrono::seconds(60))));
    requests.back()->post();
  }
  for (int round = 0; round < 1000; ++round) {
    for (Request* request : requests) request->poll();
  }
  EXPECT_EQ(requests[0]->poll(), Outcome::mismatch);
  EXPECT_EQ(requests[2]->poll(), Outcome::mismatch);
}

/// Leaders exchange messages, which need no answer: one of another operation must not count for the next.
TEST(HierarchyMismatch, MessagesOfAnotherOperationAreNotTaken) {
  const BoardHierarchy boards({0, 0, 1, 1}, {}, 400);
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<CheckedCall>> calls;
  for (int rank = 0; rank < 4; ++rank) backends.push_back(boards.make(rank));
  const auto run_all = [&](OperationKind kind, int others_root, std::uint64_t sequence) {
    std::vector<Request*> requests;
    for (int rank = 0; rank < 4; ++rank) {
      const Call call{.kind = kind, .count = 10, .root = rank < 2 ? 0 : others_root};
      calls.push_back(std::make_unique<CheckedCall>(call, 4, rank, sequence));
      requests.push_back(&backends[static_cast<std::size_t>(rank)]->init({&calls.back()->operation(), 1},
                                                                         Deadline::after(std::chrono::seconds(60))));
      requests.back()->post();
    }
    for (int round = 0; round < 1000; ++round) {
      for (Request* request : requests) request->poll();
    }
    return requests.front()->poll();
  };
  run_all(OperationKind::scatter, 2, 1);  // each domain's root sends to the other's, which receives nothing
  EXPECT_EQ(run_all(OperationKind::gather, 0, 2), Outcome::mismatch);
}

/// A neighbour dies before the second operation, when the first one's data from another domain has arrived.
TEST(HierarchyFailure, EndsNothingThatIsComplete) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const BoardHierarchy boards({0, 0, 1}, {.concurrent_collectives = 1, .tells_of_aborts = true, .seed = seed}, 400);
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<std::unique_ptr<CheckedCall>> calls;
    const auto post = [&](int rank, OperationKind kind, std::uint64_t sequence) {
      calls.push_back(std::make_unique<CheckedCall>(Call{.kind = kind, .count = 10, .root = 0}, 3, rank, sequence));
      Request& request = backends[static_cast<std::size_t>(rank)]->init({&calls.back()->operation(), 1},
                                                                        Deadline::after(std::chrono::seconds(60)));
      request.post();
      return &request;
    };
    for (int rank = 0; rank < 3; ++rank) backends.push_back(boards.make(rank));
    const std::array first{post(0, OperationKind::broadcast, 1), post(1, OperationKind::broadcast, 1)};
    Request* const second = post(0, OperationKind::all_reduce, 2);
    for (int round = 0; round < 100; ++round) {
      for (Request* request : first) request->poll();
    }
    EXPECT_EQ(first[0]->poll(), Outcome::running);
    post(2, OperationKind::broadcast, 1);
    boards.kill(1);
    for (int round = 0; round < 100; ++round) {
      first[0]->poll();
      second->poll();
    }
    EXPECT_EQ(first[0]->poll(), Outcome::ok) << seed;
    EXPECT_EQ(second->poll(), Outcome::peers_failed) << seed;
  }
}

TEST(HierarchyMessages, TheOwnTagIsRefused) {
  const BoardHierarchy boards({0, 1}, {}, 400);
  const auto backend = boards.make(0);
  std::vector<float> values(3);
  Operation operation;
  operation.kind = OperationKind::send;
  operation.root = 1;
  operation.tag = hierarchy::kOwnTag;
  operation.count = values.size();
  operation.input = values;
  Request& request = backend->init({&operation, 1}, Deadline::after(std::chrono::seconds(60)));
  request.post();
  EXPECT_EQ(request.poll(), Outcome::mismatch);
  EXPECT_NE(request.failure().cause.find("4294967295"), std::string::npos);
  request.release();
}

}  // namespace

}  // namespace ddp::collectives::testing
