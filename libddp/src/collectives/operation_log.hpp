// The last collectives that a group has issued. Peers ask for them when something fails.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <ddp/operation.hpp>

namespace ddp::collectives {

/// Thread-safe; of calls of finished() one at a time. Keeps the last kKept collectives; older ones are forgotten.
class OperationLog {
 public:
  static constexpr std::size_t kKept = 256;

  struct Entry {
    std::uint64_t sequence = 0;
    std::uint64_t fingerprint = 0;
    Operation operation;  ///< without tensors' memory: only described, never run
  };

  void issued(const Operation& operation);
  void finished(const Operation& operation);

  std::uint64_t last_issued() const;
  /// Whether a collective has been issued that is not finished.
  bool waits() const;
  std::optional<Entry> find(std::uint64_t sequence) const;

 private:
  mutable std::mutex mutex_;
  std::array<Operation, kKept> entries_{};  ///< without tensors
  std::uint64_t last_issued_ = 0;
  // How many there have been, each with one writer at a time: nothing is read and written in one step.
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> finished_{0};
};

}  // namespace ddp::collectives
