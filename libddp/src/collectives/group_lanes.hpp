// The backends of a group, each with a queue from which operations are posted in issue order, polled and finished. One
// thread at a time does that, whichever has the time: one that waits for an operation, else a progress thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/work_state.hpp"

namespace ddp::collectives {

/// A connected backend and its name.
struct GroupBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

/// A backend with its operations in issue order, which only Lanes touches.
class Lane {
 public:
  explicit Lane(GroupBackend carrier)
      : name(std::move(carrier.name)), traits(carrier.backend->traits()), backend_(std::move(carrier.backend)) {}

  const std::string name;
  const BackendTraits traits;

 private:
  friend class Lanes;
  std::unique_ptr<Backend> backend_;
  WorkList queue_;                  ///< not posted
  std::vector<WorkState*> posted_;  ///< posted or failing
  int collectives_ = 0;             ///< of those posted
};

class Lanes;

/// The right to drive a group, a token for functions that need it. Whoever has it keeps it for as long as the backends'
/// calls take, which on a device may be for ever.
class DrivingTurn {
 public:
  DrivingTurn(DrivingTurn&& other) noexcept : lanes_(std::exchange(other.lanes_, nullptr)) {}
  DrivingTurn& operator=(DrivingTurn&&) = delete;
  /// Calls back those that wait for what has finished meanwhile.
  ~DrivingTurn();

 private:
  friend class Lanes;
  explicit DrivingTurn(Lanes& lanes) : lanes_(&lanes) {}
  Lanes* lanes_;
};

/// Members without a DrivingTurn may be called from any thread.
class Lanes {
 public:
  using Time = WorkState::Time;

  /// @param backends connected, one for each device type; the first serves the CPU.
  Lanes(GroupEngine& group, std::vector<GroupBackend> backends);
  Lanes& operator=(Lanes&&) = delete;
  ~Lanes();

  /// As many as there are backends, for ever.
  const std::vector<Lane>& all() const noexcept { return lanes_; }
  /// The lane of a device type; null if no backend serves it.
  Lane* of(DeviceType device) noexcept;
  bool plugins() const noexcept { return plugins_; }
  /// An operation has failed: nothing more is posted.
  bool stuck() const noexcept { return stuck_.load(); }
  /// For a group that has failed: its backends have been aborted.
  bool aborted() const noexcept { return aborted_.load(); }
  /// How often the group has been driven.
  std::uint32_t drives() const noexcept { return drives_.load(std::memory_order_relaxed); }

  std::optional<DrivingTurn> try_turn() noexcept {
    if (driven_.load(std::memory_order_relaxed) || driven_.exchange(true)) return std::nullopt;
    return DrivingTurn(*this);
  }
  /// Nothing if another thread keeps it until @p limit.
  std::optional<DrivingTurn> take_turn(Time limit) noexcept;
  /// Drives the group once, unless another thread does. Whether an operation got further.
  bool attempt() noexcept;
  /// Sleeps in the lane's backend, at most for @p limit.
  void rest(const Lane& lane, std::chrono::microseconds limit) noexcept;
  /// Aborts the backends beside a call that does not come back.
  void abort_backends() noexcept;

  /// Takes operations as far as they go now. Whether one got further.
  bool drive(const DrivingTurn& turn) noexcept;
  /// Calls @p visit(operation, whether it has been posted) for all unfinished ones.
  template <class Visit>
  void visit_unfinished(const DrivingTurn& turn, Visit&& visit) {
    admit(turn);
    for (Lane& lane : lanes_) {
      for (WorkState* work : lane.posted_) visit(work->subject != nullptr ? *work->subject : *work, true);
      for (WorkState* work = lane.queue_.front(); work != nullptr; work = work->next) {
        if (work->subject == nullptr) visit(*work, false);
      }
    }
  }
  /// Which of several operations to ask about: one that the backend waits for, each in its turn.
  std::size_t suspect_of(const DrivingTurn& turn, const WorkState& work) const;
  /// Null once shut.
  Backend* backend(const DrivingTurn& /*turn*/, const Lane& lane) noexcept {
    return shut_ ? nullptr : lane.backend_.get();
  }

  /// Ends operations that a backend does not let go of. Returns the owners of what it may still touch.
  std::vector<std::shared_ptr<const void>> abandon(const DrivingTurn& turn) noexcept;
  /// Nothing can be driven any more.
  void shut(const DrivingTurn& /*turn*/) noexcept { shut_ = true; }
  /// For lanes that are shut: whether no thread is in a call of a backend any more, which none is in from now on.
  bool end_rests(Deadline limit) noexcept;
  /// After that.
  std::vector<std::unique_ptr<Backend>> take_backends();

 private:
  friend class DrivingTurn;

  // with the right to drive
  void admit(const DrivingTurn& turn) noexcept;
  bool advance(const DrivingTurn& turn, Lane& lane) noexcept;
  bool start(Lane& lane) noexcept;
  bool poll(const DrivingTurn& turn, Lane& lane) noexcept;
  void post(Lane& lane, WorkState& work) noexcept;
  void note_begin(WorkState& work) noexcept;
  void conclude_comparison(WorkState& work) noexcept;
  void note_failure(WorkState& work, std::optional<Error> failure) noexcept;
  bool give_up(const DrivingTurn& turn) noexcept;
  void finish(const DrivingTurn& turn, WorkState& work, std::optional<Error> error) noexcept;
  static void remove(Lane& lane, std::size_t place) noexcept;
  void end_turn() noexcept;

  GroupEngine& group_;
  std::vector<Lane> lanes_;
  const bool plugins_;  ///< some are plugins, whose calls may hang

  std::atomic<bool> driven_{false};
  WorkList finished_;  ///< to be called back at the turn's end; the turn's own, as is shut_
  bool shut_ = false;
  std::atomic<std::uint32_t> drives_{0};
  std::atomic<bool> stuck_{false};
  std::atomic<bool> aborted_{false};

  std::atomic<int> resting_{0};       ///< threads in Backend::rest, or in abort_backends()
  std::atomic<bool> no_rest_{false};  ///< the backends are about to go
};

}  // namespace ddp::collectives
