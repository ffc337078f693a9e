// Operations as values: a fingerprint that is equal exactly when two ranks' arguments fit together, their text, and the
// log of the last ones.
#include <ddp/operation.hpp>
#include <ddp/tensor_view.hpp>

#include "collectives/operation_log.hpp"
#include "unit/kvs/rank_threads.hpp"

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

namespace ddp {

// Views of tensors: sizes, bad shapes, slices and their text.

namespace {

using ddp::test::error_of;
using ddp::test::thrown_by;
using Shape = std::vector<std::int64_t>;

TEST(TensorView, CountsElementsAndBytes) {
  std::vector<double> memory(24);
  const TensorView view{memory.data(), DType::float64, {2, 3, 4}};
  EXPECT_EQ(view.numel(), 24U);
  EXPECT_EQ(view.size_bytes(), 192U);
  EXPECT_THAT(view.shape(), ElementsAre(2, 3, 4));
  EXPECT_EQ(view.description(), "float64[2, 3, 4]");
  const TensorView scalar{memory.data(), DType::float64, {}};
  EXPECT_EQ(scalar.numel(), 1U);
  EXPECT_EQ(scalar.description(), "float64[]");
}

TEST(TensorView, ShapesOfAnyLengthAreKept) {
  float memory = 0;
  for (std::size_t dimensions = 0; dimensions <= 20; ++dimensions) {
    Shape shape(dimensions, 1);
    const TensorView view{&memory, DType::float32, shape};
    shape.assign(shape.size(), 7);
    const TensorView copy = view;
    EXPECT_THAT(copy.shape(), ElementsAreArray(Shape(dimensions, 1)));
  }
}

TEST(TensorView, MayBeEmpty) {
  EXPECT_EQ(TensorView{}.numel(), 0U);
  EXPECT_EQ(TensorView(nullptr, DType::float32, {0}).numel(), 0U);
  EXPECT_EQ(TensorView(nullptr, DType::float32, {3, 0, 5}).size_bytes(), 0U);
}

TEST(TensorView, ShapesWithoutASizeAreRefused) {
  float memory = 0;
  constexpr auto kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Shape& shape :
       {Shape{-1}, Shape{2, -3}, Shape{-2, -2}, Shape{kHuge, kHuge}, Shape{1LL << 32, 1LL << 32}}) {
    const auto error = error_of([&] { TensorView(&memory, DType::float32, shape); });
    ASSERT_TRUE(error) << testing::PrintToString(shape);
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(TensorView, BytesThatDoNotFitAreRefused) {
  double memory = 0;
  // 2^61 elements can be counted, but not their 2^64 bytes
  const Error error = thrown_by([&] { TensorView(&memory, DType::float64, {1LL << 61}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(TensorView(&memory, DType::uint8, {1LL << 61}).size_bytes(), std::size_t{1} << 61U);
}

TEST(TensorView, NullIsRefusedWhereThereAreElements) {
  const Error error = thrown_by([] { TensorView(nullptr, DType::float32, {2}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

TEST(TensorView, SlicesAreOneDimensionalAndPointIntoTheSameMemory) {
  std::vector<std::int32_t> memory(12);
  const TensorView view{memory.data(), DType::int32, {3, 4}, {.type = DeviceType::cpu, .index = 0}};
  const TensorView part = view.slice(5, 4);
  EXPECT_EQ(part.data(), memory.data() + 5);
  EXPECT_THAT(part.shape(), ElementsAre(4));
  EXPECT_EQ(part.dtype(), DType::int32);
  EXPECT_EQ(view.slice(0, 12).numel(), 12U);
  EXPECT_EQ(view.slice(12, 0).numel(), 0U);
  EXPECT_EQ(TensorView{}.slice(0, 0).numel(), 0U);
  const TensorView elsewhere{memory.data(), DType::int32, {4}, {.type = DeviceType::cuda, .index = 3}};
  EXPECT_EQ(elsewhere.slice(1, 1).device(), (Device{.type = DeviceType::cuda, .index = 3}));
}

TEST(TensorView, SlicesOutsideAreRefused) {
  std::vector<float> memory(10);
  const TensorView view{memory};
  constexpr auto kHuge = std::numeric_limits<std::size_t>::max();
  for (const auto& [first, count] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 11}, {10, 1}, {11, 0}, {5, 6}, {1, kHuge}, {kHuge, 1}}) {
    const auto error = error_of([&, from = first, size = count] { static_cast<void>(view.slice(from, size)); });
    ASSERT_TRUE(error) << first << ", " << count;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(TensorView, IsMadeOfContiguousRanges) {
  std::vector<Half> halves(3);
  EXPECT_EQ(TensorView{halves}.dtype(), DType::float16);
  const std::vector<std::int64_t> constant{1, 2};
  const TensorView view{std::span{constant}};
  EXPECT_EQ(view.dtype(), DType::int64);
  EXPECT_EQ(view.data(), constant.data());
  std::array<bool, 4> flags{};
  EXPECT_EQ(TensorView{std::span{flags}}.description(), "bool[4]");
}

TEST(DTypes, HaveSizesAndNames) {
  for (const auto& [dtype, size, name] :
       std::vector<std::tuple<DType, std::size_t, std::string>>{{DType::float32, 4, "float32"},
                                                                {DType::float64, 8, "float64"},
                                                                {DType::float16, 2, "float16"},
                                                                {DType::bfloat16, 2, "bfloat16"},
                                                                {DType::int8, 1, "int8"},
                                                                {DType::int32, 4, "int32"},
                                                                {DType::int64, 8, "int64"},
                                                                {DType::uint8, 1, "uint8"},
                                                                {DType::boolean, 1, "bool"},
                                                                {DType::uint32, 4, "uint32"},
                                                                {DType::uint64, 8, "uint64"},
                                                                {DType::float8_e4m3fn, 1, "float8_e4m3fn"},
                                                                {DType::float8_e5m2, 1, "float8_e5m2"},
                                                                {DType::complex64, 8, "complex64"},
                                                                {DType::complex128, 16, "complex128"}}) {
    EXPECT_EQ(size_of(dtype), size) << name;
    EXPECT_EQ(to_string(dtype), name);
  }
  EXPECT_EQ(component_of(DType::complex64), DType::float32);
  EXPECT_EQ(component_of(DType::complex128), DType::float64);
  EXPECT_EQ(component_of(DType::int8), DType::int8);
}

}  // namespace

}  // namespace ddp
