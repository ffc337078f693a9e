// Who records what: the groups of this process and the ring that their operations are recorded in.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <ddp/flight_recorder.hpp>
#include <ddp/operation.hpp>

#include "flight/flight_memory.hpp"

namespace ddp::collectives {

class FlightRecorder;
using flight::FlightClock;
using flight::FlightFields;
using flight::FlightRing;
using flight::FlightState;

/// A group as its records need it.
struct FlightGroupFacts {
  std::string name;               ///< unique in the job, the same on all members
  std::string backend;            ///< "host"
  int rank = 0;                   ///< own, in the group
  std::vector<int> global_ranks;  ///< of each member in the world
  std::chrono::milliseconds timeout{0};
};

/// One group's end of the recorder. Made by FlightRecorder::join, which must outlive it. Thread-safe.
class FlightGroup {
 public:
  /// Names a record, from record() on; 0: there is none.
  using Slot = std::uint64_t;

  FlightGroup(FlightRecorder& recorder, std::uint32_t id, FlightGroupFacts facts);
  FlightGroup& operator=(FlightGroup&&) = delete;
  ~FlightGroup() { flight::FlightMemory::remove_group(place_); }

  /// Records an operation that has been called. Collectives have their sequence; transfers are counted here.
  Slot record(const Operation& operation) noexcept;
  /// It is with the backend now.
  void started(Slot slot) noexcept;
  void finished(Slot slot, bool ok) noexcept;

  std::uint32_t id() const noexcept { return id_; }
  const FlightGroupFacts& facts() const noexcept { return facts_; }
  std::uint64_t last_queued() const noexcept { return last_queued_->load(std::memory_order_relaxed); }
  /// True for the first call.
  bool first_failure() noexcept { return !failed_.exchange(true); }

 private:
  friend class FlightRecorder;
  FlightRecorder& recorder_;
  const std::uint32_t id_;
  const FlightGroupFacts facts_;
  flight::GroupPlace* const place_;  ///< for those outside; null: no room
  std::atomic<std::uint64_t> own_last_queued_{0};
  std::atomic<std::uint64_t>* const last_queued_;  ///< sequence of the last collective
  std::atomic<std::uint64_t> transfers_{0};
  std::atomic<std::uint64_t> last_number_{0};  ///< of its last record
  std::atomic<bool> failed_{false};
};

/// What a dump is made of, with times in nanoseconds since 1970.
struct FlightSnapshot {
  struct Record {
    std::uint64_t number = 0;
    FlightState state = FlightState::queued;
    FlightFields fields;  ///< but for its times, which follow
    std::int64_t queued_ns = 0;
    std::int64_t started_ns = 0;   ///< 0: not yet
    std::int64_t finished_ns = 0;  ///< 0: not yet
    std::string_view label() const noexcept { return {fields.label.data(), fields.label_size}; }
  };
  int rank = -1;              ///< of this process in the world; -1 before its first group
  std::int64_t begun_ns = 0;  ///< when the recorder was made
  std::int64_t taken_ns = 0;
  std::size_t size = 0;  ///< of the ring
  std::uint64_t recorded = 0;
  std::uint64_t unreadable = 0;
  std::vector<std::shared_ptr<const FlightGroup>> groups;  ///< by id
  std::vector<std::uint64_t> last_queued;                  ///< of each group, read after the records
  std::vector<Record> records;                             ///< by number
};

/// Thread-safe.
class FlightRecorder {
 public:
  /// In memory of its own.
  explicit FlightRecorder(std::size_t size);
  explicit FlightRecorder(std::shared_ptr<flight::FlightMemory> memory);

  /// That of this process, in FlightMemory::process(), which is never destroyed. Throws Error(invalid_argument).
  static FlightRecorder& process();

  std::shared_ptr<FlightGroup> join(FlightGroupFacts facts);
  FlightSnapshot snapshot() const;

 private:
  friend class FlightGroup;
  const std::shared_ptr<flight::FlightMemory> memory_;
  FlightRing& ring_;
  const FlightClock& clock_;
  const std::uint64_t begun_;  ///< ticks
  mutable std::mutex mutex_;   ///< guards what follows
  std::uint32_t last_id_ = 0;
  int rank_ = -1;
  std::vector<std::shared_ptr<FlightGroup>>
      groups_;  ///< those that exist, and those that the ring still has records of
};

}  // namespace ddp::collectives
