// The last collectives that a group has issued. Peers ask for them when something fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/operation.hpp>

#include "base/message_fields.hpp"

namespace ddp::collectives {

// The messages with which members of a group exchange what they are doing and why the group failed.

/// "What are you doing, and what was collective number `sequence` on your side?"
struct StatusQuestion {
  std::uint64_t sequence = 0;
  bool neighbours = false;  ///< "And which members on your node run?"
};
constexpr auto description(const StatusQuestion*) {
  return base::describe({"question"}, base::fields<&StatusQuestion::sequence, &StatusQuestion::neighbours>());
}

/// "The group has failed, for this reason."
struct Verdict {
  Error error{ErrorDetail{}};
};
constexpr auto description(const Verdict*) { return base::describe({"verdict"}, base::fields<&Verdict::error>()); }

/// "The group should fail for this reason. Keep it, unless you have been told another before."
struct Proposal {
  Error error{ErrorDetail{}};
};
constexpr auto description(const Proposal*) { return base::describe({"proposal"}, base::fields<&Proposal::error>()); }

/// What one member sends to another unasked.
using GroupMessage = std::variant<StatusQuestion, Verdict, Proposal>;
constexpr auto description(const GroupMessage*) { return base::describe({"message of a process group"}); }

/// What was proposed to it first, or what the members have agreed on.
struct ProposalAnswer {
  bool decided = false;  ///< they have
  Error error{ErrorDetail{}};
};
constexpr auto description(const ProposalAnswer*) {
  return base::describe({"answer to a proposal in a process group"},
                        base::fields<&ProposalAnswer::decided, &ProposalAnswer::error>());
}

/// A send or receive that has been waiting for its peer for long.
struct LongTransfer {
  std::string description;
  int peer = 0;  ///< in the group
  bool receives = false;
};
constexpr auto description(const LongTransfer*) {
  return base::describe({"transfer"},
                        base::fields<&LongTransfer::description, &LongTransfer::peer, &LongTransfer::receives>());
}

struct StatusAnswer {
  std::uint64_t last_issued = 0;
  std::uint64_t fingerprint = 0;  ///< of the collective asked about; 0: not issued yet, or forgotten
  std::string description{};      ///< of it
  bool waits = false;             ///< a collective is under way there, so that it watches the next rank
  std::vector<int> running{};     ///< of the members on its node: their processes run, as the kernel has it; if asked
  std::optional<LongTransfer> transfer{};  ///< in which it waits
  std::optional<Error> verdict{};          ///< why the group has failed on that rank, if it has
};
constexpr auto description(const StatusAnswer*) {
  return base::describe(
      {"status of a process group"},
      base::fields<&StatusAnswer::last_issued, &StatusAnswer::fingerprint, &StatusAnswer::description,
                   &StatusAnswer::waits, &StatusAnswer::running, &StatusAnswer::transfer, &StatusAnswer::verdict>());
}

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
