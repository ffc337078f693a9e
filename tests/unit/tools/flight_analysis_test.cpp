// Whatever one rank of eight does differently, it is found, with clocks that differ by minutes.
#include "flight/analysis.hpp"

#include <gmock/gmock.h>

#include "unit/tools/flight_job.hpp"

namespace ddp::tools::flight {
namespace {

using test::Fault;
using test::FlightJob;
using testing::ElementsAre;
using testing::HasSubstr;

/// Of some other faults the kind cannot be known: a call that is missing looks like another one where the next is not
/// seen any more.
std::vector<Divergence> kinds_of(Fault fault) {
  using enum Divergence;
  const std::vector<Divergence> shifted{missing_call, extra_call,  other_order, other_operation,
                                        other_size,   other_dtype, other_root};
  switch (fault) {
    case Fault::killed: return {no_dump};
    case Fault::other_operation: return {other_operation};
    case Fault::other_size: return {other_size};
    case Fault::other_dtype: return {other_dtype};
    default: return shifted;
  }
}

struct Case {
  Fault fault;
  bool several_groups;
};

class RandomDivergence : public testing::TestWithParam<Case> {};

TEST_P(RandomDivergence, HasTheRightCulprit) {
  const auto [fault, several_groups] = GetParam();
  int stuck = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    for (const int depth : {1, 2, 5}) {
      // A ring that is too small for what can be under way would have lost it.
      FlightJob job(seed, fault, several_groups, depth, depth == 5 ? 60 : 16);
      if (job.run()) continue;  // two equal calls swapped, or calls of two groups that nobody waits for in between
      ++stuck;
      const auto dumps = job.dumps(seed % 2 == 0);
      const Analysis analysis = analyse(dumps);
      ASSERT_TRUE(analysis.first) << "seed " << seed << " depth " << depth;
      EXPECT_THAT(analysis.first->culprits, ElementsAre(job.culprit()))
          << "seed " << seed << " depth " << depth << ": " << to_string(analysis.first->kind);
      EXPECT_TRUE(analysis.first->sure);
      EXPECT_THAT(kinds_of(fault), testing::Contains(analysis.first->kind))
          << "seed " << seed << " depth " << depth << ": " << to_string(analysis.first->kind);
      EXPECT_FALSE(analysis.waits.empty());
    }
  }
  EXPECT_GE(stuck, 60);
}

INSTANTIATE_TEST_SUITE_P(Faults, RandomDivergence,
                         testing::Values(Case{Fault::killed, false}, Case{Fault::killed, true},
                                         Case{Fault::missing, false}, Case{Fault::missing, true},
                                         Case{Fault::extra, false}, Case{Fault::extra, true},
                                         Case{Fault::other_operation, false}, Case{Fault::other_operation, true},
                                         Case{Fault::other_size, false}, Case{Fault::other_size, true},
                                         Case{Fault::other_dtype, false}, Case{Fault::other_dtype, true},
                                         Case{Fault::swapped, false}, Case{Fault::swapped, true}));

/// Where a rank makes a call more before it waits, and calls can be told apart, what the fault was is certain.
TEST(FlightAnalysis, NamesTheKindOfAHundredRandomDivergences) {
  using enum Divergence;
  const std::vector<std::pair<Fault, Divergence>> faults{
      {Fault::killed, no_dump},     {Fault::missing, missing_call},  {Fault::other_operation, other_operation},
      {Fault::extra, extra_call},   {Fault::other_size, other_size}, {Fault::other_dtype, other_dtype},
      {Fault::swapped, other_order}};
  for (unsigned seed = 0; seed < 100; ++seed) {
    const auto [fault, kind] = faults[seed % faults.size()];
    FlightJob job(1000 + seed, fault, false, 2 + static_cast<int>(seed % 4), 60, true);
    ASSERT_FALSE(job.run()) << "seed " << seed;
    const Analysis analysis = analyse(job.dumps());
    ASSERT_TRUE(analysis.first) << "seed " << seed;
    EXPECT_EQ(analysis.first->kind, kind) << "seed " << seed << ": " << to_string(analysis.first->kind);
    EXPECT_THAT(analysis.first->culprits, ElementsAre(job.culprit())) << "seed " << seed;
    EXPECT_TRUE(analysis.first->sure);
  }
}

TEST(FlightAnalysis, FindsNothingWhereNothingIsWrong) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    FlightJob job(seed, Fault::none, true, 3, 1000);
    EXPECT_TRUE(job.run());
    const Analysis analysis = analyse(job.dumps());
    EXPECT_FALSE(analysis.first);
    EXPECT_TRUE(analysis.waits.empty());
    EXPECT_TRUE(analysis.without_dump.empty());
    EXPECT_EQ(analysis.ranks.size(), 8U);
  }
}

/// A dump of one rank in one group of all.
RankDump dump_of(int rank, std::vector<int> ranks) {
  RankDump dump;
  dump.rank = rank;
  dump.written_ns = 100'000'000'000;
  dump.groups.push_back({"world", rank, std::move(ranks), 0});
  return dump;
}

Call& add_call(RankDump& dump, OperationKind kind, std::size_t count, CallState state) {
  Operation operation;
  operation.kind = kind;
  operation.count = count;
  Call call;
  call.number = dump.calls.size() + 1;
  call.kind = kind;
  call.count = count;
  if (!call.is_transfer()) operation.sequence = ++dump.groups[0].last_queued;
  call.sequence = operation.sequence;
  call.fingerprint = operation.fingerprint();
  call.state = state;
  call.queued_ns = 90'000'000'000;
  return dump.calls.emplace_back(call);
}

TEST(FlightAnalysis, OfTwoRanksNeitherIsHeldForSure) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1}), dump_of(1, {0, 1})};
  add_call(dumps[0], OperationKind::all_reduce, 5, CallState::started);
  add_call(dumps[1], OperationKind::all_reduce, 6, CallState::started);
  const Analysis analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::other_size);
  EXPECT_FALSE(analysis.first->sure);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(1));
  EXPECT_THAT(analysis.first->others, ElementsAre(0));
  EXPECT_EQ(analysis.first->theirs, "all_reduce #1 of float32 x 6, sum");
  EXPECT_EQ(analysis.first->expected, "all_reduce #1 of float32 x 5, sum");
}

TEST(FlightAnalysis, WhatAllHaveCalledIsUnderWay) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  for (RankDump& dump : dumps) add_call(dump, OperationKind::all_reduce, 5, CallState::started);
  add_call(dumps[1], OperationKind::barrier, 0, CallState::queued);  // is ahead, and waits its turn
  const Analysis analysis = analyse(dumps);
  EXPECT_FALSE(analysis.first);
  ASSERT_EQ(analysis.waits.size(), 1U);
  EXPECT_THAT(analysis.waits[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_TRUE(analysis.waits[0].missing.empty());
  EXPECT_DOUBLE_EQ(analysis.waits[0].seconds, 10);
}

TEST(FlightAnalysis, TransfersWaitForTheirPeer) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  add_call(dumps[0], OperationKind::recv, 5, CallState::started).root = 1;
  Analysis analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::missing_call);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(1));
  ASSERT_EQ(analysis.waits.size(), 1U);
  EXPECT_THAT(analysis.waits[0].missing, ElementsAre(1));

  // It waits for rank 2, which has not called anything.
  add_call(dumps[1], OperationKind::recv, 5, CallState::started).root = 2;
  analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_THAT(analysis.first->culprits, ElementsAre(2));

  // Another size than the peer's.
  dumps[1].calls.clear();
  add_call(dumps[1], OperationKind::send, 7, CallState::started).root = 0;
  analysis = analyse(dumps);
  ASSERT_TRUE(analysis.first);
  EXPECT_EQ(analysis.first->kind, Divergence::other_size);
  EXPECT_FALSE(analysis.first->sure);
}

TEST(FlightAnalysis, WhoStaysForTheShortestTimeCameLast) {
  std::vector<RankDump> dumps{dump_of(0, {0, 1, 2}), dump_of(1, {0, 1, 2}), dump_of(2, {0, 1, 2})};
  for (int step = 0; step < 10; ++step) {
    for (RankDump& dump : dumps) {
      const std::int64_t hour = 3'600'000'000'000;
      Call& call = add_call(dump, OperationKind::all_reduce, 5, CallState::done);
      call.started_ns = (1 + dump.rank) * hour;  // of a clock of its own
      call.finished_ns = call.started_ns + (dump.rank == 1 && step % 5 != 0 ? 1'000'000 : 21'000'000 + dump.rank);
    }
  }
  const Analysis analysis = analyse(dumps);
  EXPECT_FALSE(analysis.first);
  ASSERT_EQ(analysis.stragglers.size(), 1U);
  const Straggler& slow = analysis.stragglers[0];
  EXPECT_EQ(slow.rank, 1);
  EXPECT_EQ(slow.last, 8U);
  EXPECT_EQ(slow.of, 10U);
  EXPECT_NEAR(slow.seconds, 0.16, 1e-3);
  EXPECT_NEAR(slow.longest, 0.02, 1e-3);
}

}  // namespace
}  // namespace ddp::tools::flight
