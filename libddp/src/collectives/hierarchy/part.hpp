// One of the backends that a hierarchical one is made of, with the steps that run in it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/hierarchy/task.hpp"

namespace ddp::collectives::hierarchy {

class Part {
 public:
  /// @param backend may be null: then nothing runs in it. @param ranks in the group, by rank in the part.
  Part(std::unique_ptr<Backend> backend, std::vector<int> ranks);

  /// Null if this rank is in no such part.
  Backend* backend() const { return backend_.get(); }

  bool has_room(bool messages) const;
  /// Collectives under way.
  std::size_t collectives() const { return collectives_; }
  /// Whether no step is under way.
  bool idle() const { return count_ == 0; }
  /// Starts a step that is ready.
  void start(Task& task, std::size_t stage);
  /// How the steps under way stand.
  struct Look {
    bool moved = false;
    Outcome outcome = Outcome::running;  ///< of the first step that failed: peers_failed, timeout, ...
    Failure failure;                     ///< ranks in the group
    const Task* task = nullptr;          ///< whose step it was
  };
  Look poll();
  /// Whether a step of @p task may still touch memory.
  bool uses(const Task& task) const;
  /// After abort(): lets go of the steps of @p task.
  void drop(const Task& task);

  /// Failure of an operation of this part with ranks of the group.
  Failure in_group(Failure failure) const;

  /// A transfer outside of any task begins or ends. Thread-safe, as is busy().
  void add_busy(int change) noexcept { busy_.fetch_add(change, std::memory_order_relaxed); }
  bool busy() const noexcept { return busy_.load(std::memory_order_relaxed) > 0; }

 private:
  static constexpr std::size_t kMostFlights = 8;

  struct Flight {
    Task* task = nullptr;  ///< null: dropped
    std::size_t stage = 0;
    Request* request = nullptr;  ///< null: over
    bool message = false;
    std::vector<Operation> operations;
  };
  Flight& flight(std::size_t index) { return flights_[(first_ + index) % kMostFlights]; }
  const Flight& flight(std::size_t index) const { return flights_[(first_ + index) % kMostFlights]; }
  void end(Flight& flight);
  /// Those before which none is under way count as ended.
  void retire();

  std::unique_ptr<Backend> backend_;
  std::vector<int> ranks_;
  std::size_t most_collectives_ = 1;
  std::size_t collectives_ = 0;               ///< under way
  std::array<Flight, kMostFlights> flights_;  ///< a ring, in the order in which they were posted
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::atomic<int> busy_{0};
};

}  // namespace ddp::collectives::hierarchy
