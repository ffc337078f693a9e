// What a process's flight recorder shows to other processes.
#include "flight/flight_memory.hpp"
#include "flight/flight_ring.hpp"
#include "flight/flight_view.hpp"

namespace ddp::flight {
namespace {

FlightFields fields_of(std::uint32_t group, std::uint8_t kind, std::uint64_t sequence, std::uint64_t ticks) {
  FlightFields fields;
  fields.group = group;
  fields.kind = kind;
  fields.sequence = sequence;
  fields.queued = ticks;
  return fields;
}

TEST(FlightMemory, IsReadFromOutside) {
  FlightMemory memory(4, FlightMemory::Visibility::shared);
  memory.set_world(5, 8);
  memory.enter(FlightPhase::wired_up);
  memory.name_kind(0, "all_reduce", false);
  memory.name_kind(1, "send", true);
  std::vector<int> all(3000);
  std::iota(all.begin(), all.end(), 0);
  GroupPlace* const world = memory.add_group(1, "world", "host", 5, all);
  GroupPlace* const pair = memory.add_group(2, "pair\n", "host", 1, {7, 5});
  ASSERT_NE(world, nullptr);
  ASSERT_NE(pair, nullptr);
  for (std::uint64_t i = 1; i <= 6; ++i) {
    memory.ring().finish(memory.ring().add(fields_of(1, 0, i, memory.clock().ticks())), memory.clock().ticks(), true);
  }
  world->last_queued = 7;
  memory.ring().add(fields_of(1, 0, 7, memory.clock().ticks()));
  memory.ring().add(fields_of(2, 1, 1, memory.clock().ticks()));

  const auto view = view_flight("/proc", ::getpid());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->rank, 5);
  EXPECT_EQ(view->world_size, 8);
  EXPECT_EQ(view->phase, FlightPhase::wired_up);
  EXPECT_EQ(view->recorded, 8U);
  ASSERT_EQ(view->groups.size(), 2U);
  EXPECT_EQ(view->groups[0].members, all);
  EXPECT_EQ(view->groups[0].last_queued, 7U);
  EXPECT_EQ(view->groups[1].name, "pair?") << "printable";
  EXPECT_EQ(view->groups[1].members, (std::vector{7, 5}));
  ASSERT_EQ(view->unfinished.size(), 2U);
  EXPECT_EQ(view->unfinished[0].operation, "all_reduce");
  EXPECT_EQ(view->unfinished[0].sequence, 7U);
  EXPECT_EQ(view->unfinished[0].group, "world");
  EXPECT_FALSE(view->unfinished[0].transfer);
  EXPECT_TRUE(view->unfinished[1].transfer);
  EXPECT_GE(view->unfinished[0].age_s, view->unfinished[1].age_s);
  EXPECT_LT(view->unfinished[0].age_s, 600);
  ASSERT_TRUE(view->last);
  EXPECT_EQ(view->last->operation, "send");

  FlightMemory::remove_group(pair);
  EXPECT_EQ(view_flight("/proc", ::getpid())->groups.size(), 1U);
}

TEST(FlightMemory, SumsAreReadFromOutside) {
  using std::chrono::milliseconds;
  FlightMemory memory(4, FlightMemory::Visibility::own);
  memory.add_bytes(1000);
  memory.add_bytes(24);
  ASSERT_TRUE(read_flight_memory(memory.bytes())->sums);
  EXPECT_EQ(read_flight_memory(memory.bytes())->sums->straggler_rank, -1);
  memory.add_step({.duration = milliseconds(500), .communication = milliseconds(100), .hidden = milliseconds(80)});
  memory.add_step({.duration = milliseconds(250),
                   .communication = milliseconds(100),
                   .hidden = milliseconds(-3),  // clocks of threads
                   .straggler_rank = 0,
                   .straggler_delay = milliseconds(7)});
  memory.add_step({.duration = milliseconds(250), .communication = milliseconds(100), .hidden = milliseconds(120)});
  const auto sums = read_flight_memory(memory.bytes())->sums;
  EXPECT_EQ(sums->operation_bytes, 1024U);
  EXPECT_EQ(sums->steps, 3U);
  EXPECT_DOUBLE_EQ(sums->step_s, 1);
  EXPECT_DOUBLE_EQ(sums->communication_s, 0.3);
  EXPECT_DOUBLE_EQ(sums->hidden_s, 0.18) << "no more than there was, and no less than nothing";
  EXPECT_DOUBLE_EQ(sums->last_step_s, 0.25);
  EXPECT_LT(sums->last_step_age_s, 600);
  EXPECT_EQ(sums->straggler_rank, 0);
  EXPECT_DOUBLE_EQ(sums->straggler_delay_s, 0.007);
}

TEST(FlightMemory, OfAParentIsNotItsChilds) {
  FlightMemory::process().set_world(3, 4);
  const pid_t child = ::fork();
  if (child == 0) {
    FlightMemory::process().set_world(1, 2);  // into pages of its own
    ::_exit(view_flight("/proc", ::getpid()) ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto view = view_flight("/proc", ::getpid());
  ASSERT_TRUE(view);
  EXPECT_EQ(view->rank, 3);
}

TEST(FlightWindow, ShowsWhatIsAddedUntilTheMemoryIsClosed) {
  auto memory = std::make_optional<FlightMemory>(64, FlightMemory::Visibility::shared);
  const auto add = [&] { memory->ring().add(fields_of(1, 0, 1, memory->clock().ticks())); };
  for (int i = 0; i < 32; ++i) add();  // more than any other of this process
  const auto window = FlightWindow::open("/proc", ::getpid());
  ASSERT_TRUE(window && window->view());
  EXPECT_EQ(window->view()->recorded, 32U);
  add();
  EXPECT_EQ(window->view()->recorded, 33U);
  memory.reset();
  EXPECT_FALSE(window->view());
  memory.emplace(64, FlightMemory::Visibility::shared);  // with the same descriptor
  EXPECT_FALSE(window->view());
}

TEST(FlightMemory, OfOthersIsCheckedBeforeItIsBelieved) {
  FlightMemory memory(4, FlightMemory::Visibility::own);
  memory.add_group(1, "world", "host", 0, {0, 4, 9});
  const auto good = memory.bytes();
  ASSERT_TRUE(read_flight_memory(good));
  EXPECT_FALSE(read_flight_memory(good.first(100)));
  EXPECT_FALSE(read_flight_memory(good.first(good.size() - 1)));
  const auto changed = [&](auto change) {
    std::vector<std::byte> copy(good.size() + 64);
    void* place = copy.data();
    std::size_t room = copy.size();
    std::align(64, good.size(), place, room);
    std::memcpy(place, good.data(), good.size());
    change(*static_cast<FlightHeader*>(place), *reinterpret_cast<GroupPlace*>(static_cast<std::byte*>(place) + 4096));
    return read_flight_memory({static_cast<const std::byte*>(place), good.size()});
  };
  EXPECT_FALSE(changed([](auto& header, auto&) { header.magic[3] = 'x'; }));
  EXPECT_FALSE(changed([](auto& header, auto&) { header.ring_size = 1U << 30U; }));
  EXPECT_FALSE(changed([](auto& header, auto&) { header.ring_offset = ~std::uint64_t{63}; }));
  EXPECT_FALSE(changed([](auto& header, auto&) { header.group_count = 4096; }));
  EXPECT_FALSE(changed([](auto& header, auto&) { header.slot_bytes = 8; }));
  EXPECT_FALSE(changed([](auto& header, auto&) { header.adds_up = 0; })->sums) << "of an older libddp";
  const auto odd = changed([](auto&, auto& place) { place.listed = place.size = 1 << 30; });
  ASSERT_TRUE(odd);
  EXPECT_TRUE(odd->groups.at(0).members.empty());
}

TEST(FlightMemory, ThatLiesAboutManyLargeGroupsTakesLittle) {
  constexpr std::size_t kGroups = 64;
  FlightMemory memory(4, FlightMemory::Visibility::own);
  std::vector<std::byte> copy(4096 + kGroups * sizeof(GroupPlace) + 64);
  void* place = copy.data();
  std::size_t room = copy.size();
  std::align(64, copy.size() - 64, place, room);
  std::memcpy(place, memory.bytes().data(), sizeof(FlightHeader));
  auto& header = *static_cast<FlightHeader*>(place);
  header.group_count = kGroups;
  header.groups_offset = 4096;
  header.ring_size = 0;
  header.ring_offset = 4096;
  for (std::size_t i = 0; i < kGroups; ++i) {
    auto& group = reinterpret_cast<GroupPlace*>(static_cast<std::byte*>(place) + 4096)[i];
    group.id = static_cast<std::uint32_t>(i + 1);
    group.size = 65'536;
    group.listed = 2;
    group.members[1] = 1;
  }
  const auto view = read_flight_memory({static_cast<const std::byte*>(place), copy.size() - 64});
  ASSERT_TRUE(view);
  ASSERT_EQ(view->groups.size(), kGroups);
  std::size_t members = 0;
  for (const auto& group : view->groups) members += group.members.size();
  EXPECT_EQ(members, 4U * 65'536U) << "the first ones, as of a job of this size";
}

}  // namespace

// The ring keeps the last records whole, whatever threads write and read at the same time.

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

// Reads unfinished records and the last one, without the others.
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

/// Creating a ring costs the same whatever its size: every rank does it while all wait for each other.
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

// Also under the thread sanitizer. A ring of one slot, where writers and the reader collide all the time.
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
