// What a group is given to do, from any thread and without a lock: an operation gets a slot, its place and number in
// the order of all, and waits in an inbox until the thread that drives the group takes it.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <ddp/work.hpp>

#include "collectives/flight/flight_recorder.hpp"
#include "collectives/group_members.hpp"
#include "collectives/operation_log.hpp"
#include "collectives/work_state.hpp"

namespace ddp::collectives {

class DrivingTurn;
class Lane;

/// Thread-safe.
class Submission {
 public:
  using Time = WorkState::Time;

  /// @param compare_on where arguments are compared before each collective (DDP_CHECK_COLLECTIVES); null: they are not.
  /// All other arguments must outlive this object.
  Submission(GroupEngine& group, OperationLog& log, FlightGroup& flight, Lane* compare_on);
  Submission& operator=(Submission&&) = delete;
  ~Submission();

  /// Puts @p operations, which start as one and are moved from, into the order of all.
  Work add(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now);
  /// No handle refers to @p work any more, and the group has finished with it.
  void recycle(WorkState& work) noexcept;
  /// How many have been added and not finished.
  int unfinished() const noexcept { return unfinished_.load(); }
  /// Handles of all that are in use.
  std::vector<Work> works();
  /// Something waits to be taken.
  bool pending() const noexcept { return inbox_.load() != nullptr; }
  /// Nothing is added any more: holds @p group until no slot is in use.
  void close(std::shared_ptr<GroupEngine> group) noexcept;

  /// What has come in, in order, up to the first of which only the place has been taken so far.
  WorkList take(const DrivingTurn& turn) noexcept;
  void finished(const DrivingTurn& /*turn*/) noexcept { unfinished_.fetch_sub(1); }

 private:
  class SlotGuard;

  WorkState& take_slot();
  WorkState& prepare(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now);
  WorkState& prepare_comparison(WorkState& subject, Time now);
  void number(WorkState& work, WorkState* comparison) noexcept;
  void queue(WorkState& work) noexcept;

  // A thread takes its place in the order, in one step with the numbers of its collectives, then pushes what it adds
  // onto the inbox. Who drives waits for one that has a place and has not pushed yet.
  static constexpr unsigned kSequenceBits = 44;  // half a year of an operation each microsecond
  static constexpr std::uint64_t kSequences = (std::uint64_t{1} << kSequenceBits) - 1;
  static constexpr std::uint64_t kPlaces = std::uint64_t{1} << (64U - kSequenceBits);
  static constexpr std::uint64_t kClosed = 1;
  static constexpr std::uint64_t kUse = 2;

  GroupEngine& group_;
  OperationLog& log_;
  FlightGroup& flight_;
  Lane* const compare_on_;
  std::atomic<std::uint64_t> places_{0};    ///< places taken, modulo kPlaces, above the last number of a collective
  std::atomic<WorkState*> inbox_{nullptr};  ///< the newest first
  std::atomic<WorkState*> spare_{nullptr};  ///< a slot for the next: on an idle group, the only one
  std::atomic<std::uint64_t> uses_{0};      ///< kUse for each slot in use, and kClosed
  std::atomic<int> unfinished_{0};
  std::shared_ptr<GroupEngine> self_;  ///< once closed, while slots are in use
  std::mutex mutex_;                   ///< guards what follows; taken last, and for moments
  std::deque<WorkState> slots_;        ///< all there are
  WorkList unused_;

  // belong to who drives
  WorkList early_;  ///< from the inbox, by place; one before them is missing
  std::uint64_t next_place_ = 0;
};

}  // namespace ddp::collectives
