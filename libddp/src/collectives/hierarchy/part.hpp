// One of the backends that a hierarchical one is made of, with the steps that run in it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/deadline.hpp>

#include "collectives/hierarchy/plan.hpp"

namespace ddp::collectives::hierarchy {

// ---- One collective under way: how far its segments have come through the stages of its plan.

/// Used again and again: keeps its temporary memory, at most six segments (or six elements a rank, if that is more).
class Task {
 public:
  /// May throw std::bad_alloc.
  void begin(const Layout& layout, const Operation& operation, Deadline deadline, std::size_t segment_bytes);

  const Job& job() const { return job_; }
  Deadline deadline() const { return deadline_; }

  /// Among the stages in the domain, or those between domains: the one whose next segment it is the
  /// turn of; none when all are posted.
  enum class Scope : std::uint8_t { domain, between };
  std::optional<std::size_t> next(Scope scope) const;
  /// Whether what a stage's next segment needs is there.
  bool ready(std::size_t stage) const;
  bool unposted(std::size_t stage) const { return posted_[stage] < job_.segments(); }
  /// @return the segment.
  std::size_t posted(std::size_t stage) { return posted_[stage]++; }
  /// Segments of a stage end in order.
  void ended(std::size_t stage) { ++ended_[stage]; }
  bool over() const;
  /// One of its steps has failed: it will not be over, and none of its steps needs to start.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }

 private:
  Job job_;
  Deadline deadline_{Deadline::Clock::time_point{}};
  std::array<std::size_t, Job::kMostStages> posted_{};
  std::array<std::size_t, Job::kMostStages> ended_{};
  bool given_up_ = false;
  std::unique_ptr<std::byte[]> temporary_;
  std::size_t temporary_bytes_ = 0;
};

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
