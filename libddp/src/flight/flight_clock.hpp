// Time stamps of flight records: reading steady_clock alone would take half of the time that a record may take. Where
// the kernel itself keeps time by the processor's counter, that is read directly, and turned into time when the records
// are read.
#pragma once

#include <chrono>
#include <cstdint>

namespace ddp::flight {

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

}  // namespace ddp::flight
