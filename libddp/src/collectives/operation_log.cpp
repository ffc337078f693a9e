#include "collectives/operation_log.hpp"

#include <bit>
#include <new>

namespace ddp::collectives {
namespace {

constexpr std::uint64_t kHasCounts = std::uint64_t{1} << 24U;

}  // namespace

void OperationLog::issued(const Operation& operation) noexcept {
  if (operation.sequence == 0) return;
  if (!operation.counts.empty()) {
    const std::lock_guard lock(mutex_);
    Counts& counts = counts_[operation.sequence % kKept];
    try {
      if (counts.sequence < operation.sequence) counts = {operation.sequence, operation.counts};
    } catch (const std::bad_alloc&) {  // then it is forgotten already
      counts.sequence = 0;
    }
  }
  Slot& slot = slots_[operation.sequence % kKept];
  std::uint64_t before = slot.sequence.load(std::memory_order_relaxed);
  // else a thread has been interrupted for as many collectives as are kept
  if (before < operation.sequence &&
      slot.sequence.compare_exchange_strong(before, Slot::kWriting, std::memory_order_acquire)) {
    const std::uint64_t kinds =
        static_cast<std::uint64_t>(operation.kind) | static_cast<std::uint64_t>(operation.dtype) << 8U |
        static_cast<std::uint64_t>(operation.reduce_op) << 16U | (operation.counts.empty() ? 0 : kHasCounts) |
        std::uint64_t{static_cast<std::uint32_t>(operation.root)} << 32U;
    slot.kinds.store(kinds, std::memory_order_release);
    slot.prescale.store(std::bit_cast<std::uint64_t>(operation.prescale), std::memory_order_release);
    slot.count.store(operation.count, std::memory_order_release);
    slot.sequence.store(operation.sequence, std::memory_order_release);
  }
  std::uint64_t last = last_issued_.load(std::memory_order_relaxed);
  while (last < operation.sequence &&
         !last_issued_.compare_exchange_weak(last, operation.sequence, std::memory_order_release)) {
  }
  issued_.fetch_add(1, std::memory_order_relaxed);
}

void OperationLog::finished(const Operation& operation) {
  if (operation.sequence == 0) return;
  // one at a time: nothing is read and written in one step
  finished_.store(finished_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void OperationLog::set_long_transfer(std::optional<LongTransfer> transfer) {
  const std::lock_guard lock(mutex_);
  long_transfer_ = std::move(transfer);
}

std::optional<LongTransfer> OperationLog::long_transfer() const {
  const std::lock_guard lock(mutex_);
  return long_transfer_;
}

bool OperationLog::waits() const {
  // in this order: what is issued in between must not make up for what has not finished
  return finished_.load(std::memory_order_acquire) != issued_.load(std::memory_order_relaxed);
}

std::optional<OperationLog::Entry> OperationLog::find(std::uint64_t sequence) const {
  const Slot& slot = slots_[sequence % kKept];
  if (sequence == 0 || slot.sequence.load(std::memory_order_acquire) != sequence) return std::nullopt;
  const std::uint64_t kinds = slot.kinds.load(std::memory_order_acquire);
  Operation operation;
  operation.kind = static_cast<OperationKind>(kinds & 0xffU);
  operation.dtype = static_cast<DType>(kinds >> 8U & 0xffU);
  operation.reduce_op = static_cast<ReduceOp>(kinds >> 16U & 0xffU);
  operation.root = static_cast<int>(static_cast<std::uint32_t>(kinds >> 32U));
  operation.prescale = std::bit_cast<double>(slot.prescale.load(std::memory_order_acquire));
  operation.count = slot.count.load(std::memory_order_acquire);
  operation.sequence = sequence;
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return std::nullopt;
  if ((kinds & kHasCounts) != 0) {
    const std::lock_guard lock(mutex_);
    const Counts& counts = counts_[sequence % kKept];
    if (counts.sequence != sequence) return std::nullopt;
    operation.counts = counts.of_ranks;
  }
  return Entry{.sequence = sequence, .fingerprint = operation.fingerprint(), .operation = std::move(operation)};
}

}  // namespace ddp::collectives
