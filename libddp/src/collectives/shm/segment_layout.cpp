#include "collectives/shm/segment_layout.hpp"

#include <bit>

#include "base/env_table.hpp"

namespace ddp::collectives::shm {
namespace {

constexpr std::size_t kSmallestRing = 256;
constexpr std::size_t kLargestRing = 256 * 1024;
constexpr std::size_t kLargestSlot = 128 * 1024;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

/// Every rank has at least one cache line in a slot that is cut into parts.
std::size_t smallest_slot(int ranks) { return std::max<std::size_t>(1024, static_cast<std::size_t>(ranks) * 64); }

}  // namespace

std::size_t SegmentLayout::control_bytes(int ranks) {
  return round_up(sizeof(RankControl) + kFlags * sizeof(StepFlag) + kSlots * sizeof(ResultFlag) +
                      static_cast<std::size_t>(ranks) * sizeof(RingControl),
                  kPageBytes);
}

std::size_t SegmentLayout::smallest_region(int ranks) {
  return round_up(
      control_bytes(ranks) + kSlots * smallest_slot(ranks) + static_cast<std::size_t>(ranks) * kSmallestRing,
      kPageBytes);
}

SegmentLayout::SegmentLayout(int ranks, std::size_t region_bytes) : ranks_(ranks), region_bytes_(region_bytes) {
  const std::size_t room = region_bytes - control_bytes(ranks);
  const auto rings = static_cast<std::size_t>(ranks);
  const std::size_t half = std::min(room / 2, room - kSlots * smallest_slot(ranks));
  ring_bytes_ = std::clamp(std::bit_floor(half / rings), kSmallestRing, kLargestRing);
  slot_bytes_ = std::min((room - rings * ring_bytes_) / kSlots / 64 * 64, kLargestSlot);
}

namespace {

constexpr std::size_t kMiB = 1024 * 1024;
std::atomic<std::size_t> used_bytes{0};

}  // namespace

std::size_t budget_bytes() {
  return static_cast<std::size_t>(base::Environment::process().number("DDP_SHM_MIB").value_or(8)) * kMiB;
}

std::size_t budget_left() {
  const std::size_t all = budget_bytes();
  return all - std::min(all, used_bytes.load());
}

std::size_t choose_region_bytes(std::size_t left, int ranks) {
  const std::size_t smallest = SegmentLayout::smallest_region(ranks);
  if (left < smallest) return 0;
  return std::clamp(left / 8 / kPageBytes * kPageBytes, smallest, std::max(kMiB, smallest));
}

BudgetShare::BudgetShare(std::size_t bytes) : bytes_(bytes) { used_bytes += bytes; }
BudgetShare::~BudgetShare() { used_bytes -= bytes_; }

}  // namespace ddp::collectives::shm
