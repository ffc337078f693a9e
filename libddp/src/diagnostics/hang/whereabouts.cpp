#include "diagnostics/hang/whereabouts.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

namespace ddp::diagnostics {
namespace {

using flight::FlightPhase;
using flight::FlightView;

// Half of a processor is more than any loop that polls with pauses takes.
constexpr double kComputing = 0.5;

constexpr std::array<std::string_view, 7> kSleeps{"nanosleep",       "clock_nanosleep", "pause", "rt_sigsuspend",
                                                  "rt_sigtimedwait", "wait4",           "waitid"};
constexpr std::array<std::string_view, 15> kWaits{"futex",      "poll",        "ppoll",    "select",  "pselect6",
                                                  "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg", "sendto",
                                                  "sendmsg",    "accept",      "accept4",  "connect", "sched_yield"};
constexpr std::array<std::string_view, 11> kFileCalls{"read", "write",  "pread64", "pwrite64",  "readv", "writev",
                                                      "open", "openat", "fsync",   "fdatasync", "flock"};
// The same where only the function in the kernel can be read, which takes less of a right.
constexpr std::array<std::string_view, 5> kSleepFunctions{"hrtimer_nanosleep", "do_nanosleep", "sigsuspend", "do_wait",
                                                          "do_sigtimedwait"};
constexpr std::array<std::string_view, 9> kWaitFunctions{
    "futex_", "do_poll", "do_sys_poll", "poll_schedule", "do_select", "ep_poll", "do_epoll", "wait_woken", "inet_csk"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}
template <class List>
bool begins_one_of(const List& list, std::string_view word) {
  return std::any_of(list.begin(), list.end(), [&](std::string_view each) { return word.starts_with(each); });
}

/// Readers of pipes and sockets wait for others.
bool at_a_file(const RankFacts& rank) {
  if (!contains(kFileCalls, rank.call)) return false;
  const std::string_view function = rank.kernel;
  return function.find("pipe") == function.npos && function.find("sock") == function.npos &&
         function.find("unix") == function.npos && !begins_one_of(kWaitFunctions, function);
}

std::string where_asleep(const RankFacts& rank) {
  const std::string& name = rank.call.empty() ? rank.kernel : rank.call;
  return name.empty() ? std::string{} : fmt::format(" in {}", name);
}

std::string text_of(Place place, const RankFacts& rank) {
  const std::string swapping = rank.swaps ? ", constantly reads pages from disk" : "";
  switch (place) {
    case Place::exited: return rank.state == 'Z' ? "ended (a zombie)" : "ended";
    case Place::stopped: return rank.state == 't' ? "stopped by a debugger" : "stopped";
    case Place::in_io:
      return fmt::format("blocked{}{}{}", where_asleep(rank), rank.state == 'D' ? " (D state)" : "", swapping);
    case Place::waiting: return fmt::format("waiting{}", where_asleep(rank));
    case Place::asleep: return fmt::format("asleep{}", where_asleep(rank));
    case Place::computing: return fmt::format("computing ({:.0f} % of a core){}", rank.cores * 100, swapping);
    default: return fmt::format("in state {}{}{}", rank.state, where_asleep(rank), swapping);
  }
}

}  // namespace

std::string_view to_string(Place place) {
  switch (place) {
    case Place::exited: return "exited";
    case Place::stopped: return "stopped";
    case Place::starting: return "starting";
    case Place::wiring_up: return "wiring_up";
    case Place::in_operation: return "in_operation";
    case Place::in_io: return "in_io";
    case Place::waiting: return "waiting";
    case Place::asleep: return "asleep";
    case Place::computing: return "computing";
    case Place::unknown: break;
  }
  return "unknown";
}

std::string duration(double seconds) {
  if (seconds < 1) return fmt::format("{:.1f} s", std::max(seconds, 0.0));
  if (seconds < 180) return fmt::format("{:.0f} s", seconds);
  if (seconds < 3 * 3600) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.0f} h", seconds / 3600);
}

Place place_of_process(const RankFacts& rank) {
  switch (rank.state) {
    case 'X':
    case 'Z': return Place::exited;
    case 'T':
    case 't': return Place::stopped;
    case 'D': return Place::in_io;
    default: break;
  }
  // Beside others, what computes all the time may get little of a core.
  if (rank.cores >= kComputing || (rank.state == 'R' && rank.steady)) return Place::computing;
  if (rank.swaps || at_a_file(rank)) return Place::in_io;
  if (contains(kSleeps, rank.call) || (rank.call.empty() && begins_one_of(kSleepFunctions, rank.kernel)))
    return Place::asleep;
  if (contains(kWaits, rank.call) || contains(kFileCalls, rank.call) ||
      (rank.call.empty() && begins_one_of(kWaitFunctions, rank.kernel)))
    return Place::waiting;
  return Place::unknown;
}

Whereabouts whereabouts(const RankFacts& rank) {
  Whereabouts where;
  where.place = place_of_process(rank);
  where.text = text_of(where.place, rank);
  const bool lives = where.place != Place::exited;
  if (!lives || (!rank.flight && !rank.links_libddp)) return where;
  const FlightPhase phase = rank.flight ? rank.flight->phase : FlightPhase::none;
  if (!rank.flight || (phase == FlightPhase::none && rank.flight->groups.empty())) {
    // A program of torch.distributed that has libddp loaded for something else will never call it.
    if (rank.flight_source != FlightSource::libddp) return where;
    where.text += ", has not called World::init";
    if (where.place != Place::stopped) where.place = Place::starting;
    return where;
  }
  const FlightView& view = *rank.flight;
  if (!view.unfinished.empty()) {
    const FlightView::Call& call = view.unfinished.front();
    const std::string in =
        fmt::format("in {}{}", describe(call), call.label.empty() ? "" : fmt::format(" ({})", call.label));
    where.since_s = call.age_s;
    where.text = where.place == Place::stopped ? fmt::format("{}, {}", where.text, in) : in;
    if (where.place != Place::stopped) where.place = Place::in_operation;
    return where;
  }
  if (phase == FlightPhase::wiring_up) {
    where.since_s = view.phase_s;
    where.text = where.place == Place::stopped ? where.text + ", in World::init" : "in World::init";
    if (where.place != Place::stopped) where.place = Place::wiring_up;
    return where;
  }
  if (view.last) {
    where.last = fmt::format("last {}", describe(*view.last));
    where.since_s = view.last->end_s;
  } else if (phase == FlightPhase::wired_up) {
    where.text += view.groups.empty() ? ", wired up" : ", has called no operation yet";
  }
  return where;
}

}  // namespace ddp::diagnostics
