// The ring that flight records are written into: fixed memory, no lock and no system call, since a record must cost
// next to nothing beside an operation of a microsecond. Readers may come at any time and take nothing from the writers.
//
// Each slot is guarded by its stamp, as in a seqlock: the number of the record and how far it is. A writer sets the
// stamp to a value that says "being written", writes and sets the next value; a reader keeps what it has copied only if
// the stamp was the same before and after. Stamps never repeat. A writer that finds another one in its slot, which has
// been interrupted for a whole turn of the ring, drops its record instead of waiting.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace ddp::flight {

enum class FlightState : std::uint8_t { queued, started, done, failed };

/// What a slot holds. No padding: it is copied as words.
struct FlightFields {
  static constexpr std::size_t kLabelBytes = 40;

  std::uint64_t sequence = 0;     ///< among the collectives, or the transfers, of the group, from 1
  std::uint64_t count = 0;        ///< elements of one rank's part
  std::uint64_t inputs = 0;       ///< elements
  std::uint64_t outputs = 0;      ///< elements
  std::uint64_t fingerprint = 0;  ///< 0: that of the other fields
  std::uint64_t queued = 0;       ///< ticks
  std::uint64_t started = 0;      ///< ticks; 0: not yet
  std::uint64_t finished = 0;     ///< ticks; 0: not yet
  std::uint32_t group = 0;
  std::int32_t root = -1;
  std::uint32_t tag = 0;
  std::uint8_t kind = 0;
  std::uint8_t dtype = 0;
  std::uint8_t reduce_op = 0;
  std::uint8_t label_size = 0;
  std::array<char, kLabelBytes> label{};
};

/// Thread-safe: any number of writers and readers.
class FlightRing {
 public:
  /// In memory of its own. @param size how many records are kept; 0: none.
  explicit FlightRing(std::size_t size);
  /// In memory that outlives it: bytes(size) of zeros, or of another ring of this size, aligned for a cache line. Only
  /// read() and added() write nothing.
  FlightRing(std::size_t size, void* memory);
  static std::size_t bytes(std::size_t size);
  static const std::size_t kSlotBytes;

  std::size_t size() const noexcept { return size_; }
  /// Records since the beginning, dropped ones too.
  std::uint64_t added() const noexcept { return memory_->next.load(std::memory_order_relaxed); }

  /// Returns the record's number, from 1; 0 if it was dropped.
  std::uint64_t add(const FlightFields& fields) noexcept;
  /// Both do nothing for number 0, for a record that is no longer there, and for one that has been finished.
  void start(std::uint64_t number, std::uint64_t ticks) noexcept;
  void finish(std::uint64_t number, std::uint64_t ticks, bool ok) noexcept;

  struct Entry {
    std::uint64_t number = 0;
    FlightState state = FlightState::queued;
    FlightFields fields;
  };
  struct Content {
    std::vector<Entry> entries;  ///< the last size(), by number
    std::uint64_t added = 0;
    std::uint64_t unreadable = 0;  ///< left out since they were being written all the time
    std::uint64_t finished = 0;    ///< of the last size(), whether they are in entries or not
  };
  Content read() const;
  /// The same without those that have ended, but the last one, at a fraction of the time: for who looks often.
  Content read_open() const;

 private:
  static constexpr std::size_t kWords = sizeof(FlightFields) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;
  static_assert(std::has_unique_object_representations_v<FlightFields> && sizeof(FlightFields) == sizeof(Words));

  struct alignas(64) Slot {
    std::atomic<std::uint64_t> stamp{0};  ///< number and phase; 0: never used
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };
  static_assert(std::is_trivially_destructible_v<Slot>);

  struct alignas(64) Memory {
    std::atomic<std::uint64_t> next{0};
  };
  struct Unmap {
    std::size_t bytes;
    void operator()(Memory* memory) const noexcept;
  };
  using OwnMemory = std::unique_ptr<Memory, Unmap>;
  static OwnMemory map(std::size_t size);
  FlightRing(std::size_t size, OwnMemory memory);

  Slot& slot(std::uint64_t number) const noexcept { return slots_[number & mask_]; }
  void order(Content& content) const;
  static bool copy(const Slot& slot, std::uint64_t& stamp, Words& words) noexcept;

  const OwnMemory own_;
  Memory* const memory_;  ///< the slots follow it
  Slot* const slots_;
  const std::size_t size_;
  const std::uint64_t mask_;
};

}  // namespace ddp::flight
