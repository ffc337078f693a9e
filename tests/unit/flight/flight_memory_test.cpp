// What a process's flight recorder says to those outside.
#include "flight/flight_memory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "flight/flight_window.hpp"

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
}  // namespace ddp::flight
