// How much shared memory this process may still use over all its groups.
#pragma once

#include <cstddef>
#include <utility>

namespace ddp::collectives::shm {

/// What a rank may use at most: DDP_SHM_MIB, default 8 MiB. Throws Error for a value that is no number.
std::size_t budget_bytes();

/// What of it is left.
std::size_t budget_left();

/// The size of the next group's region, of what all its ranks have left: an eighth of it, so that the first groups get
/// the most and there is something for many; at most 1 MiB. 0 if not even the smallest fits.
std::size_t choose_region_bytes(std::size_t left, int ranks);

/// A group's share of the budget.
class BudgetShare {
 public:
  BudgetShare() = default;
  explicit BudgetShare(std::size_t bytes);
  BudgetShare(BudgetShare&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
  BudgetShare& operator=(BudgetShare&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;
  ~BudgetShare();

 private:
  std::size_t bytes_ = 0;
};

}  // namespace ddp::collectives::shm
