#include "flight/flight_clock.hpp"

#include <fstream>
#include <string>

namespace ddp::flight {
namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;

// The kernel gives the counter up as its clock where it stops, changes its rate or differs among processors.
bool kernel_uses_counter() {
#if defined(__x86_64__)
  std::string source;
  std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource") >> source;
  return source == "tsc";
#else
  return false;
#endif
}

}  // namespace

FlightClock::FlightClock()
    : counter_(kernel_uses_counter()), first_ticks_(ticks()), first_(std::chrono::steady_clock::now()) {}

FlightClock::FlightClock(const Origin& origin)
    : counter_(origin.counter), first_ticks_(origin.ticks), first_(nanoseconds(origin.steady_ns)) {}

FlightClock::Reader::Reader(const FlightClock& clock)
    : ticks_(clock.ticks()),
      wall_(duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count()) {
  const auto passed = duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count() -
                      clock.origin().steady_ns;
  if (ticks_ > clock.first_ticks_ && passed > 0) {
    ns_per_tick_ = static_cast<double>(passed) / static_cast<double>(ticks_ - clock.first_ticks_);
  }
}

std::int64_t FlightClock::Reader::wall_ns(std::uint64_t ticks) const noexcept {
  if (ticks == 0) return 0;
  const auto before = static_cast<std::int64_t>(ticks_ - ticks);  // negative for those after this reader was made
  return wall_ - static_cast<std::int64_t>(static_cast<double>(before) * ns_per_tick_);
}

double FlightClock::Reader::seconds_since(std::uint64_t ticks) const noexcept {
  return ticks >= ticks_ ? 0 : static_cast<double>(ticks_ - ticks) * ns_per_tick_ / 1e9;
}

}  // namespace ddp::flight
