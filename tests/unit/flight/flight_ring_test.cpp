// The ring keeps the last records whole, whoever writes and reads at the same time.
#include "flight/flight_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

namespace ddp::flight {
namespace {

FlightFields fields_of(std::uint64_t value) {
  FlightFields fields;
  fields.sequence = fields.count = fields.inputs = fields.outputs = fields.fingerprint = fields.queued = value;
  fields.group = fields.tag = static_cast<std::uint32_t>(value);
  fields.label_size = FlightFields::kLabelBytes;
  fields.label.fill(static_cast<char>(value));
  return fields;
}

bool whole(const FlightRing::Entry& entry) {
  const FlightFields& fields = entry.fields;
  const std::uint64_t value = fields.sequence;
  const auto label = static_cast<char>(value);
  return fields.count == value && fields.inputs == value && fields.outputs == value && fields.fingerprint == value &&
         fields.queued == value && fields.group == static_cast<std::uint32_t>(value) && fields.tag == fields.group &&
         std::all_of(fields.label.begin(), fields.label.end(), [&](char each) { return each == label; }) &&
         (fields.started == 0 || fields.started == value + 1) &&
         (fields.finished == 0 || fields.finished == value + 2) &&
         (entry.state == FlightState::done) == (fields.finished != 0) &&
         (entry.state != FlightState::queued || fields.started == 0) &&
         (entry.state != FlightState::started || fields.started != 0);
}

TEST(FlightRing, KeepsTheLastRecordsInOrder) {
  FlightRing ring(5);
  EXPECT_TRUE(ring.read().entries.empty());
  for (std::uint64_t i = 1; i <= 100; ++i) EXPECT_EQ(ring.add(fields_of(i)), i);
  const auto content = ring.read();
  ASSERT_EQ(content.entries.size(), 5U);
  EXPECT_EQ(content.added, 100U);
  EXPECT_EQ(content.unreadable, 0U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(content.entries[i].number, 96 + i);
    EXPECT_TRUE(whole(content.entries[i]));
  }
}

// What is unfinished and the last one, without all the others.
TEST(FlightRing, OpenOnesAreReadAlone) {
  FlightRing ring(5);  // in eight slots
  EXPECT_TRUE(ring.read_open().entries.empty());
  const auto numbers = [&] {
    std::vector<std::uint64_t> all;
    for (const auto& entry : ring.read_open().entries) {
      EXPECT_TRUE(whole(entry));
      all.push_back(entry.number);
    }
    return all;
  };
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const std::uint64_t number = ring.add(fields_of(i));
    ring.start(number, i + 1);
    if (i != 17 && i != 19) ring.finish(number, i + 2, i != 18);
    const auto whole_content = ring.read();
    const auto open_content = ring.read_open();
    EXPECT_EQ(open_content.finished, whole_content.finished) << i;
    EXPECT_EQ(open_content.added, i);
    ASSERT_FALSE(open_content.entries.empty());
    EXPECT_EQ(open_content.entries.back().number, i);
  }
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{17, 19, 20}));
  EXPECT_EQ(ring.read_open().finished, 3U);
  ring.finish(17, 19, true);
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{19, 20}));
  ring.add(fields_of(21));  // neither started nor ended
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{19, 21}));
}

std::size_t resident_pages() {
  std::size_t all = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

/// Making one costs the same whatever its size: every rank does it while all wait for each other.
TEST(FlightRing, TakesMemoryWhenItIsUsed) {
  const std::size_t before = resident_pages();
  FlightRing ring(100'000);
  EXPECT_LT(resident_pages(), before + 1000) << "its slots have 4096 pages";
  EXPECT_EQ(ring.add(fields_of(1)), 1U);
}

TEST(FlightRing, StatesFollowEachOther) {
  FlightRing ring(8);
  const auto first = ring.add(fields_of(10));
  const auto second = ring.add(fields_of(20));
  const auto third = ring.add(fields_of(30));
  const auto fourth = ring.add(fields_of(40));
  ring.start(first, 11);
  ring.start(second, 21);
  ring.finish(second, 22, true);
  ring.finish(third, 32, false);  // never started
  ring.finish(second, 99, false);
  ring.start(second, 99);
  const auto entries = ring.read().entries;
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].state, FlightState::started);
  EXPECT_EQ(entries[0].fields.started, 11U);
  EXPECT_EQ(entries[1].state, FlightState::done);
  EXPECT_EQ(entries[1].fields.started, 21U);
  EXPECT_EQ(entries[1].fields.finished, 22U);
  EXPECT_EQ(entries[2].state, FlightState::failed);
  EXPECT_EQ(entries[2].fields.started, 0U);
  EXPECT_EQ(entries[3].number, fourth);
  EXPECT_EQ(entries[3].state, FlightState::queued);
}

TEST(FlightRing, WhatIsOverwrittenIsNotTouchedByItsOldOwner) {
  FlightRing ring(4);
  const auto old = ring.add(fields_of(1));
  for (std::uint64_t i = 2; i <= 5; ++i) ring.add(fields_of(i));
  ring.start(old, 77);
  ring.finish(old, 88, true);
  for (const auto& entry : ring.read().entries) {
    EXPECT_EQ(entry.state, FlightState::queued);
    EXPECT_EQ(entry.fields.started, 0U);
    EXPECT_EQ(entry.fields.finished, 0U);
  }
}

TEST(FlightRing, ARecordWithoutLabelDoesNotShowThatOfItsPlace) {
  FlightRing ring(1);
  ring.add(fields_of(7));
  ring.add(FlightFields{});
  ASSERT_EQ(ring.read().entries.size(), 1U);
  EXPECT_EQ(ring.read().entries[0].fields.label_size, 0);
}

TEST(FlightRing, OfNoSizeRecordsNothing) {
  FlightRing ring(0);
  EXPECT_EQ(ring.add(fields_of(1)), 0U);
  ring.start(0, 1);
  ring.finish(0, 1, true);
  EXPECT_TRUE(ring.read().entries.empty());
}

// Under the thread sanitizer, too. A ring of one place, where writers meet each other and the reader all the time.
TEST(FlightRing, ReadersAndWritersAtTheSameTimeSeeWholeRecordsOnly) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  FlightRing ring(1);
  std::atomic<int> running{3};
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t i = 0; i % 1000 != 0 || std::chrono::steady_clock::now() < end; ++i) {
        const std::uint64_t value = (i * 3 + writer + 1) * 10;
        const auto number = ring.add(fields_of(value));
        if (i % 2 == 0) ring.start(number, value + 1);
        if (i % 4 == 0) ring.finish(number, value + 2, true);
      }
      --running;
    });
  }
  std::uint64_t seen = 0;
  std::uint64_t torn = 0;
  while (running > 0) {
    const auto content = ring.read();
    std::set<std::uint64_t> numbers;
    for (const auto& entry : content.entries) {
      ++seen;
      torn += whole(entry) ? 0 : 1;
      numbers.insert(entry.number);
    }
    EXPECT_EQ(numbers.size(), content.entries.size());
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(torn, 0U);
  EXPECT_GT(seen, 0U);
  EXPECT_GT(ring.read().added, 3000U);
}

}  // namespace
}  // namespace ddp::flight
