// The last collectives that a group has issued. Peers ask for them when something fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include <ddp/operation.hpp>

#include "collectives/group_status.hpp"

namespace ddp::collectives {

/// Thread-safe; of calls of finished() one at a time. Keeps the last kKept collectives; older ones are forgotten.
/// Issuing takes a lock only where ranks contribute different counts.
class OperationLog {
 public:
  static constexpr std::size_t kKept = 256;

  struct Entry {
    std::uint64_t sequence = 0;
    std::uint64_t fingerprint = 0;
    Operation operation;  ///< without tensors' memory: only described, never run
  };

  void issued(const Operation& operation) noexcept;
  void finished(const Operation& operation);

  /// For the transfer that others are told of; nothing: none. Thread-safe.
  void set_long_transfer(std::optional<LongTransfer> transfer);
  std::optional<LongTransfer> long_transfer() const;

  std::uint64_t last_issued() const { return last_issued_.load(std::memory_order_acquire); }
  /// Whether a collective has been issued that is not finished.
  bool waits() const;
  std::optional<Entry> find(std::uint64_t sequence) const;

 private:
  /// As in flight::FlightRing: a reader keeps what it has read if the sequence was the same before and after. Words are
  /// stored with release and loaded with acquire, so that who sees a new one sees kWriting, too.
  struct Slot {
    static constexpr std::uint64_t kWriting = ~std::uint64_t{0};
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::uint64_t> kinds{0};  ///< kind, dtype, reduce_op, whether there are counts; root above
    std::atomic<std::uint64_t> prescale{0};
    std::atomic<std::uint64_t> count{0};
  };
  struct Counts {
    std::uint64_t sequence = 0;
    std::vector<std::size_t> of_ranks;
  };

  std::array<Slot, kKept> slots_{};
  mutable std::mutex mutex_;
  std::array<Counts, kKept> counts_{};         ///< guarded by it
  std::optional<LongTransfer> long_transfer_;  ///< the same
  std::atomic<std::uint64_t> last_issued_{0};
  // how many there have been
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> finished_{0};
};

}  // namespace ddp::collectives
