#include "collectives/operation_log.hpp"

namespace ddp::collectives {

void OperationLog::issued(const Operation& operation) {
  if (operation.sequence == 0) return;
  const std::lock_guard lock(mutex_);
  Operation& entry = entries_[operation.sequence % kKept];
  entry.kind = operation.kind;
  entry.dtype = operation.dtype;
  entry.reduce_op = operation.reduce_op;
  entry.prescale = operation.prescale;
  entry.root = operation.root;
  entry.count = operation.count;
  entry.counts = operation.counts;
  entry.sequence = operation.sequence;
  last_issued_ = operation.sequence;
  issued_.store(issued_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void OperationLog::finished(const Operation& operation) {
  if (operation.sequence == 0) return;
  finished_.store(finished_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

bool OperationLog::waits() const {
  // in this order: what is issued in between must not make up for what has not finished
  return finished_.load(std::memory_order_acquire) != issued_.load(std::memory_order_relaxed);
}

std::uint64_t OperationLog::last_issued() const {
  const std::lock_guard lock(mutex_);
  return last_issued_;
}

std::optional<OperationLog::Entry> OperationLog::find(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const Operation& entry = entries_[sequence % kKept];
  if (sequence == 0 || entry.sequence != sequence) return std::nullopt;
  return Entry{.sequence = sequence, .fingerprint = entry.fingerprint(), .operation = entry};
}

}  // namespace ddp::collectives
