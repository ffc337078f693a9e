#include "collectives/shm/memory_budget.hpp"

#include <algorithm>
#include <atomic>

#include "base/env_table.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::shm {
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
