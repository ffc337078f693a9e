// What a Work refers to: an operation on its way through a group. Lives in a pool of its group, which uses it again
// when it is finished and no handle is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/work.hpp>

namespace ddp::collectives {

class GroupEngine;
class Lane;

/// The exchange of fingerprints in front of an operation (DDP_CHECK_COLLECTIVES).
struct ArgumentComparison {
  std::vector<std::int64_t> own;
  std::vector<std::int64_t> all;
};

struct WorkState {
  using Time = Deadline::Clock::time_point;

  enum class Phase : std::uint8_t {
    queued,
    posted,
    failing,  ///< it has failed in its backend, and the group finds out why
    ok,
    failed,
  };

  /// A function to call at the end.
  struct Callback {
    std::function<void(const Work&)> function{};
    Callback* next;
  };

  explicit WorkState(GroupEngine& owner) : group(owner) {}
  static WorkState& of(const Work& work) { return *work.state_; }

  std::span<const Operation> operations() const {
    return several.empty() ? std::span<const Operation>{&single, 1} : std::span<const Operation>{several};
  }
  bool is_transfer() const { return operations().front().is_transfer(); }
  bool done() const { return phase.load(std::memory_order_acquire) >= Phase::ok; }
  std::string description() const;
  /// For several that are one call: its name; else null.
  const char* single_call() const { return operations().front().part_of; }
  /// That the group was closed while it was under way.
  Error closed_error() const;
  /// That somebody has stopped waiting for it.
  Error still_running_error() const;

  void share() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
  /// As share(), unless it is about to be used again. False then.
  bool share_if_used() noexcept {
    std::uint32_t known = references.load(std::memory_order_relaxed);
    while (known != 0 && !references.compare_exchange_weak(known, known + 1, std::memory_order_acquire)) {
    }
    return known != 0;
  }
  void drop() noexcept;
  void on_finish(std::function<void(const Work&)> function);
  /// By the thread that has finished it, once.
  void call_back() noexcept;

  GroupEngine& group;
  std::atomic<std::uint32_t> references{0};  ///< handles, and one of the group until the end
  std::atomic<Phase> phase{Phase::queued};   ///< ok and failed: finished_at and error are final
  std::atomic<Callback*> callbacks{nullptr};

  // set by submit
  Operation single;
  std::vector<Operation> several;     ///< instead of single, if several start as one
  std::vector<std::uint64_t> flight;  ///< records of the operations
  std::uint64_t place = 0;            ///< in the order of all that the group is given, modulo Submission::kPlaces
  Time issued_at{};
  Deadline deadline{Time{}};
  Time investigate_at{};  ///< early enough for a verdict by the deadline
  Lane* lane = nullptr;
  WorkState* gate = nullptr;                       ///< a comparison that must be over before; shared
  WorkState* subject = nullptr;                    ///< of a comparison: what stands behind it
  std::unique_ptr<ArgumentComparison> comparison;  ///< of a comparison

  // belongs to the thread that drives the group
  Request* request = nullptr;
  std::optional<Stream> captured_in;  ///< a stream whose graph it is a part of; of one that is ok
  std::optional<Time> begun_at;       ///< on a device; unset where the backend does not run on streams
  Time next_probe{};                  ///< when to look after those that it waits for
  std::chrono::milliseconds probe_interval{};
  unsigned probes = 0;
  std::size_t suspect = 0;    ///< of one that fails: which of several operations to look into
  bool told = false;          ///< OperationLog::long_transfer is of it
  WorkState* next = nullptr;  ///< in the one list that it is in
  Time finished_at{};
  std::optional<Error> error;  ///< while failing, what the backend said; none if the time ran out
};

/// Linked through WorkState::next, in order.
class WorkList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  WorkState* front() const noexcept { return first_; }
  void push(WorkState& work) noexcept {
    work.next = nullptr;
    (last_ ? last_->next : first_) = &work;
    last_ = &work;
  }
  /// Before the first that has a greater key.
  template <class Key>
  void insert(WorkState& work, Key&& key) noexcept {
    if (last_ == nullptr || key(*last_) <= key(work)) return push(work);
    WorkState** after = &first_;
    while (key(**after) <= key(work)) after = &(*after)->next;
    work.next = std::exchange(*after, &work);
  }
  WorkState& pop() noexcept {
    WorkState& work = *first_;
    first_ = work.next;
    if (!first_) last_ = nullptr;
    return work;
  }

 private:
  WorkState* first_ = nullptr;
  WorkState* last_ = nullptr;
};

}  // namespace ddp::collectives
