// Operations as values: a fingerprint that is equal exactly when two ranks' arguments fit together, their text, and the
// log of the last ones.
#include <ddp/operation.hpp>

#include <gtest/gtest.h>

#include <set>

#include "collectives/operation_log.hpp"

namespace ddp::collectives {
namespace {

Operation make(OperationKind kind, std::uint64_t sequence = 1) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = DType::float32;
  operation.count = 100;
  operation.root = 0;
  operation.sequence = sequence;
  return operation;
}

template <class Change>
bool changes_fingerprint(Operation operation, Change change) {
  const auto before = operation.fingerprint();
  change(operation);
  return operation.fingerprint() != before;
}

TEST(OperationFingerprint, DiffersInEveryFieldThatMustBeEqual) {
  const auto number = [](Operation& o) { o.sequence = 2; };
  const auto type = [](Operation& o) { o.dtype = DType::int32; };
  const auto count = [](Operation& o) { o.count = 101; };
  for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
    const Operation operation = make(static_cast<OperationKind>(kind));
    SCOPED_TRACE(operation.description());
    EXPECT_TRUE(changes_fingerprint(operation, number));
    EXPECT_TRUE(changes_fingerprint(operation, type));
    EXPECT_TRUE(changes_fingerprint(operation, count));
  }
  const auto op = [](Operation& o) { o.reduce_op = ReduceOp::max; };
  for (const auto kind : {OperationKind::all_reduce, OperationKind::reduce, OperationKind::reduce_scatter}) {
    EXPECT_TRUE(changes_fingerprint(make(kind), op)) << to_string(kind);
    EXPECT_TRUE(changes_fingerprint(make(kind), [](Operation& o) { o.prescale = 0.5; })) << to_string(kind);
  }
  const auto root = [](Operation& o) { o.root = 1; };
  for (const auto kind :
       {OperationKind::broadcast, OperationKind::reduce, OperationKind::gather, OperationKind::scatter}) {
    EXPECT_TRUE(changes_fingerprint(make(kind), root)) << to_string(kind);
  }
  Operation parts = make(OperationKind::all_gather_v);
  parts.counts = {1, 2, 3};
  EXPECT_TRUE(changes_fingerprint(parts, [](Operation& o) { o.counts = {1, 3, 2}; }));
  EXPECT_TRUE(changes_fingerprint(parts, [](Operation& o) { o.counts = {1, 2}; }));
}

TEST(OperationFingerprint, IsEqualWhereRanksMayDiffer) {
  std::vector<float> memory(100);
  for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
    const Operation operation = make(static_cast<OperationKind>(kind));
    SCOPED_TRACE(operation.description());
    EXPECT_FALSE(changes_fingerprint(operation, [&](Operation& o) {
      o.input = memory;
      o.output = memory;
      o.keep_alive = std::make_shared<int>(1);
      o.tag = 5;
    }));
  }
  EXPECT_FALSE(changes_fingerprint(make(OperationKind::all_reduce), [](Operation& o) { o.root = 1; }));
  EXPECT_FALSE(changes_fingerprint(make(OperationKind::broadcast), [](Operation& o) { o.reduce_op = ReduceOp::max; }));
}

TEST(OperationFingerprint, KindsDiffer) {
  std::set<std::uint64_t> seen;
  for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
    EXPECT_TRUE(seen.insert(make(static_cast<OperationKind>(kind)).fingerprint()).second) << kind;
  }
}

/// Ranks that are an operation apart call another kind with another number.
TEST(OperationFingerprint, KindsAndNumbersDoNotMakeUpForEachOther) {
  std::set<std::uint64_t> seen;
  for (int kind = 0; kind <= static_cast<int>(OperationKind::barrier); ++kind) {
    for (std::uint64_t sequence = 1; sequence <= 32; ++sequence) {
      EXPECT_TRUE(seen.insert(make(static_cast<OperationKind>(kind), sequence).fingerprint()).second)
          << kind << ", " << sequence;
    }
  }
}

TEST(OperationFingerprint, ASendMatchesItsReceive) {
  Operation send = make(OperationKind::send, 0);
  send.root = 1;
  send.tag = 7;
  Operation receive = make(OperationKind::recv, 0);
  receive.root = 0;
  receive.tag = 7;
  EXPECT_EQ(send.fingerprint(), receive.fingerprint());
  receive.tag = 8;
  EXPECT_NE(send.fingerprint(), receive.fingerprint());
  receive.tag = 7;
  receive.count = 99;
  EXPECT_NE(send.fingerprint(), receive.fingerprint());
  receive.count = 100;
  receive.dtype = DType::float16;
  EXPECT_NE(send.fingerprint(), receive.fingerprint());
}

TEST(OperationDescription, SaysWhatWasCalled) {
  Operation operation = make(OperationKind::all_reduce, 17);
  operation.reduce_op = ReduceOp::avg;
  EXPECT_EQ(operation.description(), "all_reduce #17 of float32 x 100, avg");
  EXPECT_EQ(make(OperationKind::broadcast).description(), "broadcast #1 of float32 x 100, root 0");
  EXPECT_EQ(make(OperationKind::reduce).description(), "reduce #1 of float32 x 100, sum, root 0");
  EXPECT_EQ(make(OperationKind::barrier, 3).description(), "barrier #3");
  EXPECT_EQ(make(OperationKind::all_to_all).description(), "all_to_all #1 of float32 x 100");
  Operation parts = make(OperationKind::all_gather_v);
  parts.counts = {1, 0, 3};
  EXPECT_EQ(parts.description(), "all_gather_v #1 of float32 x [1, 0, 3]");
  Operation send = make(OperationKind::send, 0);
  send.tag = 9;
  send.root = 2;
  EXPECT_EQ(send.description(), "send of float32 x 100 to 2, tag 9");
  send.kind = OperationKind::recv;
  EXPECT_EQ(send.description(), "recv of float32 x 100 from 2, tag 9");
}

TEST(OperationLog, FindsTheLastOnesAndForgetsTheRest) {
  OperationLog log;
  EXPECT_EQ(log.last_issued(), 0U);
  EXPECT_FALSE(log.find(0));
  EXPECT_FALSE(log.find(1));
  constexpr std::uint64_t kIssued = OperationLog::kKept * 2 + 10;
  for (std::uint64_t sequence = 1; sequence <= kIssued; ++sequence) {
    log.issued(make(OperationKind::all_reduce, sequence));
    EXPECT_EQ(log.last_issued(), sequence);
  }
  for (std::uint64_t sequence = 1; sequence <= kIssued + 10; ++sequence) {
    const auto entry = log.find(sequence);
    const bool kept = sequence <= kIssued && sequence > kIssued - OperationLog::kKept;
    ASSERT_EQ(entry.has_value(), kept) << sequence;
    if (!entry) continue;
    EXPECT_EQ(entry->sequence, sequence);
    EXPECT_EQ(entry->fingerprint, make(OperationKind::all_reduce, sequence).fingerprint());
    EXPECT_EQ(entry->operation.sequence, sequence);
  }
}

TEST(OperationLog, TransfersHaveNoNumberAndAreNotKept) {
  OperationLog log;
  log.issued(make(OperationKind::all_reduce, 1));
  log.issued(make(OperationKind::send, 0));
  EXPECT_EQ(log.last_issued(), 1U);
  EXPECT_FALSE(log.find(0));
}

/// Inquests compare what members have logged with the operation itself: a difference would be taken for a mismatch.
TEST(OperationLog, KeepsWhatCountsInFingerprints) {
  OperationLog log;
  Operation scaled = make(OperationKind::all_reduce, 1);
  scaled.prescale = 0.5;
  log.issued(scaled);
  ASSERT_TRUE(log.find(1));
  EXPECT_EQ(log.find(1)->fingerprint, scaled.fingerprint());
  EXPECT_EQ(log.find(1)->operation.description(), scaled.description());
}

TEST(OperationLog, DoesNotKeepMemoryAlive) {
  OperationLog log;
  auto memory = std::make_shared<int>(1);
  Operation operation = make(OperationKind::all_reduce, 1);
  operation.keep_alive = memory;
  log.issued(operation);
  operation.keep_alive.reset();
  EXPECT_EQ(memory.use_count(), 1);
}

}  // namespace
}  // namespace ddp::collectives
