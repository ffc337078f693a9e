// Groups record their operations with labels, sequences and times.
#include "collectives/flight/flight_recorder.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ddp::collectives {
namespace {

using std::chrono::nanoseconds;

FlightGroupFacts facts_of(std::string name, std::vector<int> ranks) {
  return {.name = std::move(name),
          .backend = "host",
          .rank = 1,
          .global_ranks = std::move(ranks),
          .timeout = std::chrono::seconds(600)};
}

Operation operation_of(OperationKind kind, std::uint64_t sequence) {
  Operation operation;
  operation.kind = kind;
  operation.sequence = sequence;
  operation.count = 12;
  return operation;
}

std::int64_t wall_now() {
  return std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TEST(FlightRecorder, CountsTransfersApartFromCollectives) {
  FlightRecorder recorder(16);
  const auto group = recorder.join(facts_of("g", {4, 6}));
  group->record(operation_of(OperationKind::all_reduce, 1));
  group->record(operation_of(OperationKind::send, 0));
  group->record(operation_of(OperationKind::recv, 0));
  group->record(operation_of(OperationKind::barrier, 2));
  const FlightSnapshot snapshot = recorder.snapshot();
  EXPECT_EQ(snapshot.rank, 6);
  EXPECT_EQ(snapshot.recorded, 4U);
  ASSERT_EQ(snapshot.records.size(), 4U);
  EXPECT_EQ(snapshot.records[1].fields.sequence, 1U);
  EXPECT_EQ(snapshot.records[2].fields.sequence, 2U);
  EXPECT_EQ(snapshot.records[3].fields.sequence, 2U);
  ASSERT_EQ(snapshot.last_queued.size(), 1U);
  EXPECT_EQ(snapshot.last_queued[0], 2U);
}

TEST(FlightRecorder, TimesAreThoseOfTheWallClock) {
  FlightRecorder recorder(4);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  const std::int64_t before = wall_now();
  const auto slot = group->record(operation_of(OperationKind::barrier, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group->started(slot);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  group->finished(slot, true);
  const std::int64_t after = wall_now();
  const FlightSnapshot snapshot = recorder.snapshot();
  ASSERT_EQ(snapshot.records.size(), 1U);
  const auto& record = snapshot.records[0];
  constexpr std::int64_t kStep = 5'000'000;  // of a wall clock that is being corrected
  EXPECT_GE(record.queued_ns, before - kStep);
  EXPECT_LE(record.finished_ns, after + kStep);
  EXPECT_GE(record.started_ns - record.queued_ns, 19'000'000);
  EXPECT_GE(record.finished_ns - record.started_ns, 19'000'000);
  EXPECT_LE(snapshot.begun_ns, record.queued_ns);
  EXPECT_GE(snapshot.taken_ns, record.finished_ns - kStep);
}

TEST(FlightRecorder, LabelsNestAndBelongToTheirThread) {
  FlightRecorder recorder(8);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  const auto record = [&] { group->record(operation_of(OperationKind::barrier, 1)); };
  record();
  {
    const FlightLabel outer("step 17");
    record();
    {
      const FlightLabel inner(std::string(39, 'x') + "é");  // its last character does not fit whole
      record();
      std::thread(record).join();
    }
    record();
  }
  record();
  const auto records = recorder.snapshot().records;
  ASSERT_EQ(records.size(), 6U);
  EXPECT_EQ(records[0].label(), "");
  EXPECT_EQ(records[1].label(), "step 17");
  EXPECT_EQ(records[2].label(), std::string(39, 'x'));
  EXPECT_EQ(records[3].label(), "");
  EXPECT_EQ(records[4].label(), "step 17");
  EXPECT_EQ(records[5].label(), "");
}

TEST(FlightRecorder, ForgetsGroupsThatAreGoneWithTheirRecords) {
  FlightRecorder recorder(4);
  auto first = recorder.join(facts_of("first", {0, 1}));
  first->record(operation_of(OperationKind::barrier, 1));
  const auto second = recorder.join(facts_of("second", {0, 1}));
  first.reset();
  recorder.join(facts_of("third", {0, 1}));
  EXPECT_EQ(recorder.snapshot().groups.size(), 3U) << "a group whose record is still there";
  for (std::uint64_t i = 1; i <= 8; ++i) second->record(operation_of(OperationKind::barrier, i));
  const auto fourth = recorder.join(facts_of("fourth", {0, 1}));
  const FlightSnapshot snapshot = recorder.snapshot();
  ASSERT_EQ(snapshot.groups.size(), 2U);
  EXPECT_EQ(snapshot.groups[0]->facts().name, "second");
  EXPECT_EQ(snapshot.groups[1]->facts().name, "fourth");
  EXPECT_EQ(snapshot.records.size(), 4U);
}

TEST(FlightRecorder, OfNoSizeIsOff) {
  FlightRecorder recorder(0);
  const auto group = recorder.join(facts_of("g", {0, 1}));
  EXPECT_EQ(group->record(operation_of(OperationKind::barrier, 1)), 0U);
  group->started(0);
  group->finished(0, true);
  EXPECT_TRUE(recorder.snapshot().records.empty());
}

}  // namespace
}  // namespace ddp::collectives
