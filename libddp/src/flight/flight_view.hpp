// What the memory of a process's flight recorder says to those outside.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/message_fields.hpp"
#include "flight/flight_memory.hpp"

namespace ddp::flight {

struct FlightView {
  struct Group {
    std::string name;
    std::string backend{};
    int rank = -1;  ///< own, in the group
    int size = 0;
    std::vector<int> members{};     ///< ranks in the world; empty: unknown, or too many groups have too many
    std::uint64_t last_queued = 0;  ///< sequence of the last collective that was called
  };
  struct Call {
    std::string group;
    std::string operation;  ///< "all_reduce"
    std::uint64_t sequence = 0;
    std::uint64_t count = 0;
    bool transfer = false;
    int peer = -1;  ///< root, or the other end of a transfer: rank in the group
    FlightState state = FlightState::queued;
    double age_s = 0;  ///< since it was called
    double end_s = 0;  ///< since it ended, if it has
    std::string label{};
  };
  int pid = 0;  ///< as the process sees itself
  int rank = -1;
  int world_size = 0;
  FlightPhase phase = FlightPhase::none;
  double phase_s = 0;  ///< since it was entered
  /// FlightSums, in seconds.
  struct Sums {
    std::uint64_t operation_bytes = 0;
    std::uint64_t steps = 0;
    double step_s = 0;
    double communication_s = 0;
    double hidden_s = 0;
    double last_step_s = 0;
    double last_step_age_s = 0;
    int straggler_rank = -1;  ///< in the world; -1: nobody looked
    double straggler_delay_s = 0;
  };
  std::optional<Sums> sums{};  ///< nothing: of an older libddp
  std::uint64_t recorded = 0;
  std::uint64_t finished = 0;  ///< of those that are still in the ring
  std::vector<Group> groups;
  std::vector<Call> unfinished;  ///< in the order of calls; the first 4096
  std::optional<Call> last;      ///< that was called
};

constexpr auto description(const FlightView::Group*) {
  using T = FlightView::Group;
  return base::describe({"group"},
                        base::fields<&T::name, &T::backend, &T::rank, &T::size, &T::members, &T::last_queued>());
}
constexpr auto description(const FlightView::Call*) {
  using T = FlightView::Call;
  return base::describe({"call"},
                        base::fields<&T::group, &T::operation, &T::sequence, &T::count, &T::transfer, &T::peer,
                                     &T::age_s, &T::end_s, &T::label>(),
                        base::fields<&T::state>(base::kUpTo<FlightState::failed>));
}
constexpr auto description(const FlightView*) {
  return base::describe({.name = "calls of a rank", .unsent = 1},
                        base::fields<&FlightView::pid, &FlightView::rank, &FlightView::world_size, &FlightView::phase_s,
                                     &FlightView::recorded, &FlightView::finished, &FlightView::groups,
                                     &FlightView::unfinished, &FlightView::last>(),
                        base::fields<&FlightView::phase>(base::kUpTo<FlightPhase::left>));
}

/// @param memory aligned as a page; may change meanwhile. Nothing where it is no memory of a flight recorder of this
/// version. Text in it is made printable.
std::optional<FlightView> read_flight_memory(std::span<const std::byte> memory);

/// "group 'world'", "torch's default group": groups of torch.distributed by torch's names.
std::string describe_group(const std::string& name);
/// "all_reduce #34 of group 'world'", "send to rank 2 (#3) of group 'world'".
std::string describe(const FlightView::Call& call);

// ---- Another process's flight recorder, found below /proc and read while the process runs or hangs, without its help.

/// Keeps the memory of one recorder mapped, since finding it takes ten times as long as reading it. Not thread-safe.
class FlightWindow {
 public:
  /// For process @p pid, the one with the most records if there are several; nothing where it has none or the kernel
  /// does not let this user read it. @param proc "/proc".
  static std::optional<FlightWindow> open(const std::string& proc, pid_t pid);
  FlightWindow(FlightWindow&& other) noexcept;
  FlightWindow& operator=(FlightWindow&& other) noexcept;
  ~FlightWindow();

  /// Nothing once the process has ended or runs another program.
  std::optional<FlightView> view() const;

 private:
  /// @param path below /proc. Nothing where that is no memory of a flight recorder.
  static std::optional<FlightWindow> open_file(std::string path);
  FlightWindow(std::string path, std::span<const std::byte> pages, dev_t device, ino_t inode)
      : path_(std::move(path)), pages_(pages), device_(device), inode_(inode) {}

  std::string path_;
  std::span<const std::byte> pages_;
  dev_t device_;
  ino_t inode_;
};

/// What a window on @p pid shows, for those who look once.
std::optional<FlightView> view_flight(const std::string& proc, pid_t pid);

}  // namespace ddp::flight
