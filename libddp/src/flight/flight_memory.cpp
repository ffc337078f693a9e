#include "flight/flight_memory.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <new>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"

namespace ddp::flight {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// Untouched pages cost nothing, so there may be many.
constexpr std::size_t kMostGroups = 256;
constexpr std::size_t kGroupsOffset = 4096;
static_assert(sizeof(FlightHeader) <= kGroupsOffset);
constexpr std::size_t kRingOffset = (kGroupsOffset + kMostGroups * sizeof(GroupPlace) + 4095) / 4096 * 4096;

// A record takes 128 bytes, and some 700 in a dump.
constexpr int kLargestSize = 100'000;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

std::size_t size_from_environment() {
  const base::Environment environment = base::Environment::process();
  const std::string text = environment.text("DDP_FLIGHT_SIZE");
  int size = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, size);
  if (status == std::errc{} && end == last && size >= 0 && size <= kLargestSize) return static_cast<std::size_t>(size);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading the environment variable DDP_FLIGHT_SIZE",
               .cause = fmt::format("'{}' is not a number of operations from 0 to {}", text, kLargestSize),
               .hint = "correct or unset DDP_FLIGHT_SIZE"}};
}

/// Seals the size, so that no reader finds the file cut short; empty if there can be no such file.
base::UniqueFd sealed_file(std::size_t bytes) {
  rlimit limit{};  // ftruncate(2) beyond it sends SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < bytes) return {};
  base::UniqueFd file{::memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL)};
  if (file.get() < 0) file.reset(::memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));  // before Linux 6.3
  if (file.get() < 0 || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return {};
  return file;
}

template <std::size_t size>
void copy_text(std::array<char, size>& to, std::string_view text) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), size - 1), to.data());
}

/// Whether the ranks have equal distances, as in nearly all groups.
bool is_regular(const std::vector<int>& members) {
  for (std::size_t i = 2; i < members.size(); ++i) {
    if (members[i] - members[i - 1] != members[1] - members[0]) return false;
  }
  return members.size() > 2;
}

FlightMemory* of_process = nullptr;

}  // namespace

FlightMemory::FlightMemory(std::size_t ring_size, Visibility visibility)
    : bytes_(kRingOffset + FlightRing::bytes(ring_size)),
      ring_(ring_size, (map(visibility), static_cast<void*>(base_ + kRingOffset))) {
  FlightHeader& head = header();
  const FlightClock::Origin origin = clock_.origin();
  head.pid = ::getpid();
  head.counter = origin.counter ? 1 : 0;
  head.first_ticks = origin.ticks;
  head.first_steady_ns = origin.steady_ns;
  head.groups_offset = kGroupsOffset;
  head.group_bytes = sizeof(GroupPlace);
  head.group_count = kMostGroups;
  head.ring_offset = kRingOffset;
  head.ring_size = ring_size;
  head.slot_bytes = FlightRing::kSlotBytes;
  head.rank.store(-1, std::memory_order_relaxed);
  head.adds_up = 1;
  std::atomic_thread_fence(std::memory_order_release);
  head.magic = FlightHeader::kMagic;
}

FlightMemory::~FlightMemory() { ::munmap(base_, bytes_); }

void FlightMemory::map(Visibility visibility) {
  if (visibility == Visibility::shared) file_ = sealed_file(bytes_);
  void* pages = MAP_FAILED;
  if (file_) pages = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (pages == MAP_FAILED) {
    file_.reset();
    pages = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (pages == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(pages);
  struct stat facts {};
  if (!file_ || ::fstat(file_.get(), &facts) != 0) return;
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
}

void FlightMemory::detach() noexcept {
  if (!file_) return;
  // The program may have closed the descriptor, so it may be another file's by now.
  struct stat facts {};
  const bool same = ::fstat(file_.get(), &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
  ::mmap(base_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | (same ? 0 : MAP_ANONYMOUS),
         same ? file_.get() : -1, 0);
}

FlightMemory& FlightMemory::process() {
  // Leaked: threads of the library may record until the very end.
  static FlightMemory& memory = []() -> FlightMemory& {
    of_process = new FlightMemory(size_from_environment(), Visibility::shared);
    ::pthread_atfork(nullptr, nullptr, [] { of_process->detach(); });
    return *of_process;
  }();
  return memory;
}

void FlightMemory::name_kind(std::uint8_t kind, std::string_view name, bool transfer) noexcept {
  if (kind >= FlightHeader::kKinds) return;
  copy_text(header().kinds[kind], name);
  if (transfer) header().transfers.fetch_or(1U << kind, std::memory_order_relaxed);
}

void FlightMemory::set_world(int rank, int world_size) noexcept {
  header().rank.store(rank, std::memory_order_relaxed);
  header().world_size.store(world_size, std::memory_order_relaxed);
}

void FlightMemory::enter(FlightPhase phase) noexcept {
  header().phase_ticks.store(clock_.ticks(), std::memory_order_relaxed);
  header().phase.store(static_cast<std::uint32_t>(phase), std::memory_order_release);
}

void FlightMemory::add_step(const FlightStep& step) noexcept {
  FlightSums& sums = header().sums;
  const auto ns = [](std::chrono::nanoseconds time) {
    return static_cast<std::uint64_t>(std::max(time, std::chrono::nanoseconds{0}).count());
  };
  sums.step_ns.fetch_add(ns(step.duration), std::memory_order_relaxed);
  sums.communication_ns.fetch_add(ns(step.communication), std::memory_order_relaxed);
  sums.hidden_ns.fetch_add(ns(std::min(step.hidden, step.communication)), std::memory_order_relaxed);
  sums.last_step_ns.store(ns(step.duration), std::memory_order_relaxed);
  sums.last_step_ticks.store(clock_.ticks(), std::memory_order_relaxed);
  if (step.straggler_rank >= 0) {
    sums.straggler_delay_ns.store(ns(step.straggler_delay), std::memory_order_relaxed);
    sums.straggler_rank_and_1.store(static_cast<std::uint32_t>(step.straggler_rank) + 1, std::memory_order_relaxed);
  }
  sums.steps.fetch_add(1, std::memory_order_release);
}

GroupPlace* FlightMemory::add_group(std::uint32_t id, std::string_view name, std::string_view backend, int rank,
                                    const std::vector<int>& members) noexcept {
  const std::lock_guard lock(mutex_);
  auto* const first = reinterpret_cast<GroupPlace*>(base_ + kGroupsOffset);
  auto* const place = std::find_if(first, first + kMostGroups,
                                   [](const GroupPlace& each) { return each.id.load(std::memory_order_acquire) == 0; });
  if (place == first + kMostGroups) return nullptr;
  place->rank = rank;
  place->size = static_cast<std::int32_t>(members.size());
  const std::size_t listed = is_regular(members) ? 2 : std::min(members.size(), GroupPlace::kMostMembers);
  place->listed = static_cast<std::int32_t>(listed);
  std::copy_n(members.begin(), listed, place->members.begin());
  if (listed == 2 && members.size() > 2) place->members[1] -= place->members[0];
  if (listed < members.size() && listed != 2) place->listed = 0;  // irregular and too many
  copy_text(place->name, name);
  copy_text(place->backend, backend);
  place->last_queued.store(0, std::memory_order_relaxed);
  place->id.store(id, std::memory_order_release);
  return place;
}

void FlightMemory::remove_group(GroupPlace* place) noexcept {
  if (place != nullptr) place->id.store(0, std::memory_order_release);
}

void enter_phase(FlightPhase phase) noexcept {
  try {
    FlightMemory::process().enter(phase);
  } catch (...) {  // out of memory, or a malformed setting: the first process group retries, and throws it
  }
}

void note_step(const FlightStep& step) noexcept {
  try {
    FlightMemory::process().add_step(step);
  } catch (...) {  // as above
  }
}

void set_world(int rank, int world_size) noexcept {
  try {
    FlightMemory::process().set_world(rank, world_size);
  } catch (...) {  // as above
  }
}

namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// The kernel drops the counter as its clock if it stops, changes its rate or differs among processors.
bool kernel_uses_counter() {
#if defined(__x86_64__)
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return source == "tsc";
#else
  return false;
#endif
}

}  // namespace

FlightClock::FlightClock()
    : counter_(kernel_uses_counter()), first_ticks_(ticks()), first_(std::chrono::steady_clock::now()) {}

FlightClock::FlightClock(const Origin& origin)
    : counter_(origin.counter), first_ticks_(origin.ticks), first_(nanoseconds(origin.steady_ns)) {}

FlightClock::Reader::Reader(const FlightClock& clock)
    : ticks_(clock.ticks()),
      wall_(duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count()) {
  const auto passed = duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() -
                      clock.origin().steady_ns;
  if (ticks_ > clock.first_ticks_ && passed > 0) {
    ns_per_tick_ = static_cast<double>(passed) / static_cast<double>(ticks_ - clock.first_ticks_);
  }
}

std::int64_t FlightClock::Reader::wall_ns(std::uint64_t ticks) const noexcept {
  if (ticks == 0) return 0;
  const auto before = static_cast<std::int64_t>(ticks_ - ticks);  // negative for ticks after this reader was made
  return wall_ - static_cast<std::int64_t>(static_cast<double>(before) * ns_per_tick_);
}

double FlightClock::Reader::seconds_since(std::uint64_t ticks) const noexcept {
  return ticks >= ticks_ ? 0 : static_cast<double>(ticks_ - ticks) * ns_per_tick_ / 1e9;
}

}  // namespace ddp::flight
