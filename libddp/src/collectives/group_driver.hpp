// Carries the operations of one group through its backends: a queue for each, from which operations are posted in issue
// order and polled by whichever thread has the time: one that waits for them, else the progress thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ddp/process_group.hpp>

#include "base/running_clock.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "collectives/fork_guard.hpp"
#include "collectives/group_watch.hpp"
#include "collectives/wait_ladder.hpp"
#include "collectives/work_state.hpp"

namespace ddp::collectives {

class ProgressThread;

/// A connected backend and its name.
struct GroupBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

/// A backend with its operations in issue order. Belongs to whoever drives the group.
struct Lane {
  GroupBackend carrier;
  BackendTraits traits;
  WorkList queue{};                  ///< not posted
  std::vector<WorkState*> posted{};  ///< posted or failing
  int collectives = 0;               ///< of those posted
};

/// Thread-safe. Kept alive by its GroupEngine and by the handles of its operations.
class GroupDriver : public std::enable_shared_from_this<GroupDriver> {
 public:
  using Time = WorkState::Time;

  /// How the progress thread finds a group.
  enum class Standing {
    idle,      ///< nothing to do
    attended,  ///< others drive it, or have just done so
    tended,    ///< nobody does: the caller has driven it, in vain
    moved,     ///< the same, and it got further
  };

  GroupDriver(GroupMembers members, std::vector<GroupBackend> backends, std::chrono::milliseconds timeout);
  ~GroupDriver();

  const GroupMembers& members() const noexcept { return members_; }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  const std::vector<Lane>& lanes() const noexcept { return lanes_; }
  /// The lane of a device type; null if no backend serves it.
  Lane* lane_of(DeviceType device) noexcept;

  /// Starts @p operations as one, whose arguments have been checked; they are moved from. On an idle group they are
  /// posted and polled once before it returns. Throws the group's verdict if it has failed.
  Work submit(std::span<Operation> operations, CallOptions options);

  /// As ProcessGroup::allocate.
  std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline);
  /// As Backend::make_executor, of the backend for CUDA tensors.
  std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline);
  /// As Backend::split, of the backend for CUDA tensors. Nothing where that does not split.
  void split(Backend* child, int rank, Deadline deadline);

  /// Returns when @p work is finished, or at @p limit. Drives the group if nobody else does.
  void wait(const WorkState& work, Time limit);
  /// Of Work::order.
  void order(const WorkState& work, const Stream& stream);
  /// Drives the group once, unless another thread does. Whether an operation got further.
  bool attempt() noexcept;
  bool forked() const noexcept { return fork_guard_.forked(); }
  const ForkGuard& fork_guard() const noexcept { return fork_guard_; }
  /// Nobody refers to @p work any more.
  void recycle(WorkState& work) noexcept;

  /// As ProcessGroup::abort.
  void abort(std::string_view reason) noexcept;
  /// Ends all operations, waits for its threads, closes the backends. In a forked child: does nothing, and keeps
  /// everything for ever.
  void close() noexcept;

  /// Makes the process's threads look after it. Throws Error(system) when there can be no more.
  void start_progress();

  // for progress threads
  Standing tend() noexcept;
  /// Of one with a thread of its own, for the others: idle or attended.
  Standing standing() const noexcept;
  /// Its backend makes calls that may hang, of NCCL or a GPU's driver.
  bool has_own_thread() const noexcept { return own_progress_ != nullptr; }
  /// Aborts the backends beside a call that does not come back though the group has failed.
  void look_for_held_turn(Time now) noexcept;
  void rest(std::chrono::microseconds limit) noexcept { rest(lanes_.front(), limit); }
  GroupWatch& watch() noexcept { return watch_; }

  // for the watch
  bool closing() const noexcept { return closing_.load(); }
  /// Something is to be looked into, or will be then.
  Time next_event() const noexcept { return Time{Time::duration{next_event_.load(std::memory_order_relaxed)}}; }
  /// The most urgent of what must be looked into now. While others keep the right to drive: only what is overdue.
  std::optional<Concern> concern();
  /// Whether a failure or a deadline is known to wait to be looked into.
  bool urgent();
  /// Sets the time of the next probe of one that has been probed.
  void probed(WorkState& work, bool interrupted);
  /// The group has failed: the watch has a verdict.
  void fail() noexcept;

 private:
  /// The right to drive, waited for. Whoever has it keeps it for as long as the backend's calls take, which on a device
  /// may be for ever.
  class Turn {
   public:
    Turn(GroupDriver& driver, Time limit);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn();
    bool taken() const noexcept { return taken_; }

   private:
    GroupDriver& driver_;
    bool taken_ = false;
  };

  /// Of a group that has not failed.
  std::optional<Work> first_unfinished();
  void drive_until_posted(const WorkState& work, Time limit);
  WorkState& take_slot();
  WorkState& prepare(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now);
  WorkState& prepare_comparison(WorkState& subject, Time now);
  void number(WorkState& work, WorkState* comparison) noexcept;
  void queue(WorkState& work) noexcept;
  Lane& lane_for(std::span<const Operation> operations);
  /// That for CUDA tensors, of a group that has not failed.
  Backend& device_backend(const std::string& attempted);
  /// Calls @p call(Backend::Pause) with the right to drive, which others have during its pauses.
  template <class Call>
  auto call_with_pauses(const std::string& attempted, Deadline deadline, Call&& call);
  void expect(Time event) noexcept;
  void wake_progress() noexcept;
  void end_progress() noexcept;

  // without the right to drive
  std::vector<Work> unfinished_works();
  std::optional<Concern> overdue();
  void abort_backends() noexcept;

  // by who drives
  std::size_t suspect_of(const WorkState& work) const;
  bool drive() noexcept;
  void admit() noexcept;
  bool advance(Lane& lane) noexcept;
  bool start(Lane& lane) noexcept;
  bool poll(Lane& lane) noexcept;
  void post(Lane& lane, WorkState& work) noexcept;
  void note_begin(WorkState& work) noexcept;
  void conclude_comparison(WorkState& work) noexcept;
  void note_failure(WorkState& work, std::optional<Error> failure) noexcept;
  bool give_up() noexcept;
  void finish(WorkState& work, std::optional<Error> error) noexcept;
  void remove(Lane& lane, std::size_t place) noexcept;
  template <class Visit>
  void visit_unfinished(Visit&& visit);

  static void conclude(WorkList finished) noexcept;
  WaitLadder ladder_for(const Lane& lane) noexcept;
  void follow(const WorkState& work, bool leading, std::chrono::microseconds limit);
  void wake_followers() noexcept;
  void rest(Lane& lane, std::chrono::microseconds limit) noexcept;
  bool end_operations() noexcept;
  bool end_rests(Deadline limit) noexcept;
  void close_backends() noexcept;
  void abandon() noexcept;
  void leave() noexcept;

  const base::RunningClockGuard running_clock_;
  GroupMembers members_;
  const std::chrono::milliseconds timeout_;
  const bool compare_arguments_;  ///< DDP_CHECK_COLLECTIVES
  /// The ranks have a processor each, and all are on this node: from another, a message is tens of microseconds away,
  /// and a poll is a system call that takes longer than sched_yield does where nobody else wants the processor.
  const bool may_spin_;
  YieldBudget yield_budget_;
  const ForkGuard fork_guard_;
  std::vector<Lane> lanes_;  ///< as many as there are backends, for ever
  const bool plugins_;       ///< some are plugins, whose calls may hang
  OperationLog log_;
  const std::shared_ptr<FlightGroup> flight_;

  // What is submitted is put in order without a lock: a thread takes its place in the order with the numbers of its
  // collectives, then pushes what it submits onto the inbox. Who drives waits where one that has a place has not pushed
  // yet.
  static constexpr unsigned kSequenceBits = 44;  // half a year of an operation each microsecond
  static constexpr std::uint64_t kSequences = (std::uint64_t{1} << kSequenceBits) - 1;
  static constexpr std::uint64_t kPlaces = std::uint64_t{1} << (64U - kSequenceBits);
  std::atomic<std::uint64_t> places_{0};    ///< places taken, modulo kPlaces, above the last number of a collective
  std::atomic<WorkState*> inbox_{nullptr};  ///< submitted, not in a lane yet; the newest first
  std::atomic<WorkState*> spare_{nullptr};  ///< a slot for the next: on an idle group, the only one
  static constexpr std::uint64_t kClosed = 1;
  static constexpr std::uint64_t kUse = 2;
  std::atomic<std::uint64_t> uses_{0};  ///< kUse for each slot that is in use, and kClosed
  std::shared_ptr<GroupDriver> self_;   ///< once closed, while slots are in use
  std::mutex mutex_;                    ///< guards what follows; taken last, and for moments
  std::deque<WorkState> slots_;         ///< all there are
  WorkList unused_;

  std::atomic<bool> driven_{false};  ///< a thread drives: what lanes hold and the next four are its own
  WorkList finished_;                ///< to be told to those who asked for it, when driving is over
  WorkList early_;                   ///< from the inbox, by place; one before them is missing
  std::uint64_t next_place_ = 0;
  bool gone_ = false;                ///< the backends: nothing can be driven any more
  bool abandoned_ = false;           ///< they are kept for ever
  std::atomic<bool> stuck_{false};   ///< an operation has failed: nothing more is posted
  std::atomic<bool> failed_{false};  ///< there is a verdict
  std::atomic<bool> ended_{false};   ///< the backends have been aborted
  std::atomic<bool> closing_{false};
  std::atomic<std::int64_t> next_event_;
  std::atomic<int> unfinished_{0};
  std::atomic<std::uint32_t> drives_{0};  ///< written by who drives

  std::atomic<bool> led_{false};      ///< one of the threads in wait() drives and rests in the backend
  std::atomic<int> followers_{0};     ///< the others, as far as they sleep
  std::atomic<int> resting_{0};       ///< threads in Backend::rest, or in abort_backends()
  std::atomic<bool> no_rest_{false};  ///< the backends are about to go
  std::mutex follow_mutex_;
  std::condition_variable follow_;

  std::uint32_t seen_drives_ = 0;      ///< of the progress thread that tends it
  bool tending_ = false;               ///< the same
  std::optional<Time> held_since_;     ///< of the one that watches it: since when it should have been aborted
  std::atomic<bool> aborting_{false};  ///< for that reason
  const std::shared_ptr<ProgressThread> own_progress_;  ///< null: that of all groups carries it on

  GroupWatch watch_;  // last: its threads use all of the above
};

}  // namespace ddp::collectives
