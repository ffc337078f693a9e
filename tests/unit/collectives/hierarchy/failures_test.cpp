// What the ranks of a hierarchical backend see when one of them dies, whoever it is and whatever is under way.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <random>

#include "unit/collectives/checked_call.hpp"
#include "unit/collectives/hierarchy/board_hierarchy.hpp"

namespace ddp::collectives::testing {
namespace {

class HierarchyFailures : public ::testing::TestWithParam<std::tuple<OperationKind, int>> {};

/// Every survivor's operation ends, and names ranks of the group: the dead one, or a leader that has given up.
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
      if (outcomes[rank] == Outcome::ok) continue;  // it was through
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

/// In its own domain a broadcast from another domain's root is one from the leader, whichever root that is.
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

/// Between leaders go messages, which nobody has to answer: one of another operation must not be taken for the next.
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

/// A neighbour dies before the second operation, while what the first needs of another domain has come.
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
