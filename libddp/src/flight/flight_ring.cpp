#include "flight/flight_ring.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace ddp::flight {
namespace {

// Phases, the lowest bits of a stamp, in the order in which they follow each other. Even: being written.
constexpr std::uint64_t kAdding = 0;
constexpr std::uint64_t kQueued = 1;
constexpr std::uint64_t kStarting = 2;
constexpr std::uint64_t kStarted = 3;
constexpr std::uint64_t kFinishing = 4;
constexpr std::uint64_t kDone = 5;
constexpr std::uint64_t kFailed = 7;
constexpr unsigned kPhaseBits = 3;

constexpr std::uint64_t stamp_of(std::uint64_t number, std::uint64_t phase) { return number << kPhaseBits | phase; }
constexpr bool being_written(std::uint64_t stamp) { return stamp != 0 && stamp % 2 == 0; }

constexpr std::size_t kStartedWord = offsetof(FlightFields, started) / sizeof(std::uint64_t);
constexpr std::size_t kFinishedWord = offsetof(FlightFields, finished) / sizeof(std::uint64_t);
constexpr std::size_t kLabelWord = offsetof(FlightFields, label) / sizeof(std::uint64_t);

// How often a reader looks at a slot that is being written: a write takes some ten nanoseconds, unless its thread is
// interrupted.
constexpr int kLooks = 1000;

FlightState state_of(std::uint64_t stamp) {
  switch (stamp % (1U << kPhaseBits)) {
    case kStarted: return FlightState::started;
    case kDone: return FlightState::done;
    case kFailed: return FlightState::failed;
    default: return FlightState::queued;
  }
}

constexpr bool has_ended(FlightState state) { return state == FlightState::done || state == FlightState::failed; }

}  // namespace

void FlightRing::Unmap::operator()(Memory* memory) const noexcept { ::munmap(memory, bytes); }

/// Fresh pages of the kernel's, all zero, which is what unused slots hold: each costs something when it is first
/// written only, not all of them when the process makes its first group.
FlightRing::OwnMemory FlightRing::map(std::size_t size) {
  void* const pages = ::mmap(nullptr, bytes(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return OwnMemory(static_cast<Memory*>(pages), Unmap{bytes(size)});
}

const std::size_t FlightRing::kSlotBytes = sizeof(Slot);

std::size_t FlightRing::bytes(std::size_t size) {
  return sizeof(Memory) + (size == 0 ? 0 : std::bit_ceil(size) * sizeof(Slot));
}

FlightRing::FlightRing(std::size_t size) : FlightRing(size, map(size)) {}

FlightRing::FlightRing(std::size_t size, OwnMemory memory)
    : own_(std::move(memory)),
      memory_(own_.get()),
      slots_(reinterpret_cast<Slot*>(memory_ + 1)),
      size_(size),
      mask_(size == 0 ? 0 : std::bit_ceil(size) - 1) {}

FlightRing::FlightRing(std::size_t size, void* memory)
    : own_(nullptr, Unmap{0}),
      memory_(static_cast<Memory*>(memory)),
      slots_(reinterpret_cast<Slot*>(memory_ + 1)),
      size_(size),
      mask_(size == 0 ? 0 : std::bit_ceil(size) - 1) {}

// Words are stored with release and loaded with acquire: who sees a new word sees the stamp that was set before it,
// too.
std::uint64_t FlightRing::add(const FlightFields& fields) noexcept {
  if (size_ == 0) return 0;
  const std::uint64_t number = memory_->next.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& place = slot(number);
  std::uint64_t before = place.stamp.load(std::memory_order_relaxed);
  if (being_written(before) || before > stamp_of(number, kAdding)) return 0;
  if (!place.stamp.compare_exchange_strong(before, stamp_of(number, kAdding), std::memory_order_acquire)) return 0;
  const auto words = std::bit_cast<Words>(fields);
  const std::size_t used = fields.label_size == 0 ? kLabelWord : kWords;
  for (std::size_t i = 0; i < used; ++i) place.words[i].store(words[i], std::memory_order_release);
  place.stamp.store(stamp_of(number, kQueued), std::memory_order_release);
  return number;
}

void FlightRing::start(std::uint64_t number, std::uint64_t ticks) noexcept {
  if (number == 0) return;
  Slot& place = slot(number);
  std::uint64_t before = stamp_of(number, kQueued);
  if (!place.stamp.compare_exchange_strong(before, stamp_of(number, kStarting), std::memory_order_acquire)) return;
  place.words[kStartedWord].store(ticks, std::memory_order_release);
  place.stamp.store(stamp_of(number, kStarted), std::memory_order_release);
}

void FlightRing::finish(std::uint64_t number, std::uint64_t ticks, bool ok) noexcept {
  if (number == 0) return;
  Slot& place = slot(number);
  std::uint64_t before = stamp_of(number, kStarted);
  while (!place.stamp.compare_exchange_strong(before, stamp_of(number, kFinishing), std::memory_order_acquire)) {
    if (before != stamp_of(number, kQueued)) return;
  }
  place.words[kFinishedWord].store(ticks, std::memory_order_release);
  place.stamp.store(stamp_of(number, ok ? kDone : kFailed), std::memory_order_release);
}

bool FlightRing::copy(const Slot& slot, std::uint64_t& stamp, Words& words) noexcept {
  for (int look = 0; look < kLooks; ++look) {
    stamp = slot.stamp.load(std::memory_order_acquire);
    if (stamp == 0) return true;
    if (being_written(stamp)) continue;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.stamp.load(std::memory_order_relaxed) == stamp) return true;
  }
  return false;
}

FlightRing::Content FlightRing::read() const {
  Content content;
  if (size_ == 0) return content;
  content.entries.reserve(size_);
  for (std::size_t i = 0; i <= mask_; ++i) {
    std::uint64_t stamp = 0;
    Words words{};
    if (!copy(slots_[i], stamp, words)) {
      ++content.unreadable;
    } else if (stamp != 0) {
      content.entries.push_back({stamp >> kPhaseBits, state_of(stamp), std::bit_cast<FlightFields>(words)});
    }
  }
  content.added = added();
  order(content);
  content.finished = static_cast<std::uint64_t>(std::count_if(
      content.entries.begin(), content.entries.end(), [](const Entry& entry) { return has_ended(entry.state); }));
  return content;
}

FlightRing::Content FlightRing::read_open() const {
  Content content;
  if (size_ == 0) return content;
  content.added = added();
  std::uint64_t last_ended = 0;
  const auto take = [&](const Slot& slot) {
    std::uint64_t stamp = 0;
    Words words{};
    if (!copy(slot, stamp, words)) {
      ++content.unreadable;
    } else if (stamp != 0) {
      content.entries.push_back({stamp >> kPhaseBits, state_of(stamp), std::bit_cast<FlightFields>(words)});
    }
  };
  for (std::size_t i = 0; i <= mask_; ++i) {
    const std::uint64_t stamp = slots_[i].stamp.load(std::memory_order_acquire);
    if (stamp == 0) continue;
    if (being_written(stamp) || !has_ended(state_of(stamp))) {
      take(slots_[i]);
      continue;
    }
    const std::uint64_t number = stamp >> kPhaseBits;
    if (number + size_ > content.added) ++content.finished;
    last_ended = std::max(last_ended, number);
  }
  if (last_ended != 0) {
    const auto newer = [&](const Entry& entry) { return entry.number > last_ended; };
    if (std::none_of(content.entries.begin(), content.entries.end(), newer)) take(slot(last_ended));
  }
  order(content);
  return content;
}

void FlightRing::order(Content& content) const {
  std::sort(content.entries.begin(), content.entries.end(),
            [](const Entry& a, const Entry& b) { return a.number < b.number; });
  if (content.entries.size() > size_) {
    content.entries.erase(content.entries.begin(), content.entries.end() - static_cast<std::ptrdiff_t>(size_));
  }
}

}  // namespace ddp::flight
