// The flight recorder's memory. That of the process lies in a sealed memfd named "ddp-flight", so that `ddp-info
// status` reads it from outside while the process hangs: through /proc/PID/fd, which the kernel opens to the same user
// alone. It also says how far the process is before it has a group.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "flight/flight_ring.hpp"

namespace ddp::flight {

// ---- Time stamps of flight records: reading steady_clock alone would take half of the time that a record may take.
// Where the kernel itself keeps time by the processor's counter, that is read directly, and turned into time when the
// records are read.

/// Ticks of one process. Thread-safe.
class FlightClock {
 public:
  /// What makes the same clock in another process of the host.
  struct Origin {
    bool counter;  ///< the processor's, which the kernel trusts
    std::uint64_t ticks;
    std::int64_t steady_ns;
  };

  FlightClock();
  explicit FlightClock(const Origin& origin);
  Origin origin() const noexcept { return {counter_, first_ticks_, first_.time_since_epoch().count()}; }

  /// Never 0.
  std::uint64_t ticks() const noexcept {
#if defined(__x86_64__)
    if (counter_) return __builtin_ia32_rdtsc();  // <x86intrin.h> takes a third of a second to compile
#endif
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  /// Turns ticks into nanoseconds since 1970. It interpolates between the clock's creation and its own, so that the
  /// counter's rate need not be known, and holds the difference to the wall clock of its own moment for all of them.
  class Reader {
   public:
    explicit Reader(const FlightClock& clock);
    std::int64_t now() const noexcept { return wall_; }
    /// 0 for 0 ticks.
    std::int64_t wall_ns(std::uint64_t ticks) const noexcept;
    /// How long ago that was; not negative.
    double seconds_since(std::uint64_t ticks) const noexcept;

   private:
    std::uint64_t ticks_;
    std::int64_t wall_;
    double ns_per_tick_ = 1;
  };

 private:
  const bool counter_;  ///< the processor's, which the kernel trusts
  const std::uint64_t first_ticks_;
  const std::chrono::steady_clock::time_point first_;
};

inline constexpr const char* kMemoryName = "ddp-flight";

/// How far World::init is.
enum class FlightPhase : std::uint32_t { none, wiring_up, wired_up, left };

/// A step of a Reducer that has ended.
struct FlightStep {
  std::chrono::nanoseconds duration{};       ///< since the step before ended; of the first one: of its backward pass
  std::chrono::nanoseconds communication{};  ///< first bucket launched to last bucket finished
  std::chrono::nanoseconds hidden{};         ///< the part of it in which gradients were computed
  int straggler_rank = -1;                   ///< in the world; -1: nobody looked
  std::chrono::nanoseconds straggler_delay{};
};

/// Where the memory has a group for those outside.
struct GroupPlace {
  static constexpr std::size_t kMostMembers = 2048;

  std::atomic<std::uint32_t> id;  ///< 0: free
  std::int32_t rank;              ///< own, in the group
  std::int32_t size;
  std::int32_t listed;  ///< how many members follow; fewer than size: the first one and the distance
  std::array<char, 112> name;
  std::array<char, 16> backend;
  std::atomic<std::uint64_t> last_queued;
  std::array<std::int32_t, kMostMembers> members;  ///< ranks in the world
};

/// What a process adds up, for metrics: sums since its beginning, in ns.
struct FlightSums {
  std::atomic<std::uint64_t> operation_bytes;  ///< of each recorded operation the larger of its input and output
  std::atomic<std::uint64_t> steps;            ///< of Reducers, that averaged
  std::atomic<std::uint64_t> step_ns;          ///< from the end of one step to that of the next
  std::atomic<std::uint64_t> communication_ns;
  std::atomic<std::uint64_t> hidden_ns;  ///< of communication_ns: while gradients were still computed
  std::atomic<std::uint64_t> last_step_ns;
  std::atomic<std::uint64_t> last_step_ticks;       ///< when it ended
  std::atomic<std::uint64_t> straggler_delay_ns;    ///< of the last step that looked for stragglers
  std::atomic<std::uint32_t> straggler_rank_and_1;  ///< likewise; 0: no step has looked
};

/// The beginning. Zeros but for what is set. All offsets are from the beginning. New members come last: memory of an
/// older libddp has zeros there.
struct FlightHeader {
  static constexpr std::array<char, 16> kMagic{'d', 'd', 'p', '-', 'f', 'l', 'i', 'g',
                                               'h', 't', '-', 'm', 'e', 'm', '/', '1'};
  static constexpr std::size_t kKinds = 16;

  std::array<char, 16> magic;  ///< set last
  std::int32_t pid;            ///< as the process sees itself: children inherit the descriptor
  std::uint32_t counter;       ///< the clock's origin
  std::uint64_t first_ticks;
  std::int64_t first_steady_ns;
  std::uint64_t groups_offset, group_bytes, group_count;
  std::uint64_t ring_offset, ring_size, slot_bytes;
  std::atomic<std::int32_t> rank, world_size;
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint64_t> phase_ticks;
  std::array<std::array<char, 20>, kKinds> kinds;  ///< names of operations, by FlightFields::kind
  std::atomic<std::uint32_t> transfers;            ///< bit of each kind that is a transfer
  std::uint32_t adds_up;                           ///< 1: sums are kept; 0 in memory of an older libddp
  alignas(64) FlightSums sums;
};

/// Owner and writer. Thread-safe.
class FlightMemory {
 public:
  enum class Visibility { own, shared };
  /// Where the kernel refuses shared memory, it is this process's own.
  FlightMemory(std::size_t ring_size, Visibility visibility);
  FlightMemory& operator=(FlightMemory&&) = delete;
  ~FlightMemory();

  /// That of this process, of DDP_FLIGHT_SIZE operations, which is never destroyed. A forked child has a copy. Throws
  /// Error(invalid_argument) for a wrong variable.
  static FlightMemory& process();

  FlightRing& ring() noexcept { return ring_; }
  const FlightRing& ring() const noexcept { return ring_; }
  const FlightClock& clock() const noexcept { return clock_; }
  void name_kind(std::uint8_t kind, std::string_view name, bool transfer) noexcept;
  void set_world(int rank, int world_size) noexcept;
  void enter(FlightPhase phase) noexcept;
  void add_bytes(std::uint64_t bytes) noexcept {
    header().sums.operation_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  void add_step(const FlightStep& step) noexcept;

  /// A place of those that are free; null: none is. @param members ranks in the world, in the group's order
  GroupPlace* add_group(std::uint32_t id, std::string_view name, std::string_view backend, int rank,
                        const std::vector<int>& members) noexcept;
  static void remove_group(GroupPlace* place) noexcept;

  std::span<const std::byte> bytes() const noexcept { return {base_, bytes_}; }

 private:
  FlightHeader& header() const noexcept { return *reinterpret_cast<FlightHeader*>(base_); }
  void map(Visibility visibility);
  /// In a forked child: what it records must not appear as its parent's.
  void detach() noexcept;

  const FlightClock clock_;
  const std::size_t bytes_;
  base::UniqueFd file_;  ///< stays open: it is what others find
  dev_t device_ = 0;     ///< of the file
  ino_t inode_ = 0;
  std::byte* base_ = nullptr;
  FlightRing ring_;
  std::mutex mutex_;  ///< for adding groups
};

/// For programs that say how far they are before anything can fail: does nothing where DDP_FLIGHT_SIZE is wrong, which
/// the first group reports.
void enter_phase(FlightPhase phase) noexcept;
void set_world(int rank, int world_size) noexcept;
void note_step(const FlightStep& step) noexcept;

}  // namespace ddp::flight
