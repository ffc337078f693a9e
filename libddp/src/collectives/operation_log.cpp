#include "collectives/operation_log.hpp"

namespace ddp::collectives {

void OperationLog::issued(const Operation& operation) {
  if (operation.sequence == 0) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[operation.sequence % kKept];
  entry = {operation.sequence, operation.fingerprint(), operation};
  entry.operation.keep_alive.reset();
  last_issued_ = operation.sequence;
  ++unfinished_;
}

void OperationLog::finished(const Operation& operation) {
  if (operation.sequence == 0) return;
  const std::lock_guard lock(mutex_);
  --unfinished_;
}

bool OperationLog::waits() const {
  const std::lock_guard lock(mutex_);
  return unfinished_ > 0;
}

std::uint64_t OperationLog::last_issued() const {
  const std::lock_guard lock(mutex_);
  return last_issued_;
}

std::optional<OperationLog::Entry> OperationLog::find(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[sequence % kKept];
  if (sequence == 0 || entry.sequence != sequence) return std::nullopt;
  return entry;
}

}  // namespace ddp::collectives
